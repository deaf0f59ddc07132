"""Measure matrix products, attention, small models and collectives on this machine.

planner/probed.py makes a machine file from the measurements.
"""
