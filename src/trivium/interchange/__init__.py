"""Convert Trivium checkpoints to Hugging Face folders and back, and export metrics to TensorBoard and wandb."""
