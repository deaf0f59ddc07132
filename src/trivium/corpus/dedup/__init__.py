"""Reads the texts of all documents.

Writes which of them repeat another, and which one of each group survives.
"""
