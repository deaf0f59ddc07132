"""Reads a model, a batch and a machine.

Writes the plans worth running, priced and explained.
"""
