"""Reads a checkpoint, and prompts from a config, a file, a terminal or a socket.
Writes texts: samples, continuations, completions over HTTP.
"""
