"""Reads documents, one at a time.

Writes a verdict: keep, or drop with the reason; and the figures it was decided on.
"""
