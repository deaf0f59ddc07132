"""Reads a checkpoint, through anything that scores requests, and word lists of its own.
Writes measurements of social bias (`trivium-bias-1`).
"""
