"""What is faster than the reference on an accelerator."""
