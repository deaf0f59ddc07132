"""The modules that a transformer layer is made of."""
