"""Reads candidate documents and a target set.

Writes a ranking: which candidates bring training closest to the target.
"""
