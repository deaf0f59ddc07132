"""Reads what is shipped of MT-NLG 530B: its plan, machine, blend, recipe and tasks.
Writes the paper's figures (arXiv 2201.11990) beside those that Trivium computes.
"""
