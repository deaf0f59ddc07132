"""Observers of the training loop, one in each file; the loop calls them before and after every step."""
