"""Reads a plan and a mesh.

Writes the transformer: the part of it that one rank holds, with values that depend only on names and the seed.
"""
