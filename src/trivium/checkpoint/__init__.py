"""Reads the tensors that ranks hold, as boxes of unsplit tensors.

Writes checkpoints: directories that know nothing of layouts, so that any layout reads any checkpoint.
"""
