"""What is faster than the reference on a processor."""
