"""ZeRO: each rank holds a part of the optimizer state, the gradients and the weights."""
