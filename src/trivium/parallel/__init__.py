"""Reads a layout and this process's rank.

Writes groups, collectives, and the machinery that runs a schedule and shards an optimizer across ranks.
"""
