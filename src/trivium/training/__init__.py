"""Reads token shards, a plan and a training config.

Writes metrics, checkpoints, and a summary of what was trained.
"""
