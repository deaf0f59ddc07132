"""Reads a plan and a machine.

Writes what the plan costs: FLOPs, bytes, seconds, and the limit that binds.
"""
