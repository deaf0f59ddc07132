"""Measure social bias of a model, or of anything else that scores requests.

Reads the package's word lists; writes measurements (`trivium-bias-1`).
"""
