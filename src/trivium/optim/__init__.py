"""Optimizer rules: the state that a parameter needs, and how its update follows from its gradient."""
