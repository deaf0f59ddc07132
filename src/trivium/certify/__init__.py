"""Certify a plan: measure how far its loss, gradients, norm and weights are from those of one process."""
