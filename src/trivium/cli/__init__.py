"""The commands of `trivium`.

A run directory has the output of each stage in a folder, with config.json and seconds.json.
"""
