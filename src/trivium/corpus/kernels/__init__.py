"""Compiled loops over columns of text (UTF-8 bytes and offsets): hashes, similarities and positions."""
