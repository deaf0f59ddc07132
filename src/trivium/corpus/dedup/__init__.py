"""Deduplication: which documents repeat another, and which one of each group survives."""
