"""Reads evaluation passages.
Writes tasks: examples, prompt templates and scoring rules as data.
"""
