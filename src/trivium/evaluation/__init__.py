"""Reads a checkpoint, through anything that scores requests, and `evaluation_items.jsonl`.
Writes results (`trivium-results-1`).
"""
