"""Reads a config.

Writes a plan: everything a run is, as pure data, executed by the runtime and priced by the planner.
"""
