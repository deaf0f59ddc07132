"""Training on pairs of a chosen and a rejected completion."""
