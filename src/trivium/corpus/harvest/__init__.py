"""Harvesting: a raw corpus on disk, with held-out documents and evaluation passages, before anything is curated."""
