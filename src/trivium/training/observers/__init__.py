"""Watches training: each file is one observer, called before and after every step and at the end."""
