"""Reads a plan.

Writes a certificate: how far the plan's loss, gradients, norm and weights are from those of one process.
"""
