"""Predict the cost of a plan on a machine: FLOPs, bytes, seconds, and the limiting resource."""
