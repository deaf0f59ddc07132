"""Adapters, implemented a second time: one file for each kind."""
