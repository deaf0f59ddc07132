"""Reads the clock while this machine does products, attention, small models and collectives.

Writes the seconds as plain measurements, from which planner/probed.py makes a machine file.
"""
