"""Reads columns of text as Arrow holds them (UTF-8 bytes and offsets).

Writes hashes, similarities and places: compiled loops for what no library does.
"""
