"""Reads the results every station left in a run directory.

Writes report.json and one self-contained report.html.
"""
