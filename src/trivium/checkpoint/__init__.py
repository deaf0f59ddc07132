"""Save and load checkpoints. They store unsplit tensors, so that any layout can load any checkpoint."""
