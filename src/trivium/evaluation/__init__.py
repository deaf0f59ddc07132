"""Evaluate a checkpoint, or anything else that scores requests, on `evaluation_items.jsonl` and published benchmarks.

Reads the checkpoint and the items; writes results (`trivium-results-1`).
"""
