"""Reads what a user types: a verb, a preset, overrides, directories.

Writes run directories: the output of every station in its folder, with config.json and seconds.json.
"""
