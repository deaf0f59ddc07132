"""Reads a function and the items to do it on.

Writes its results in the items' order: where the work runs is decided here, and nothing else is.
"""
