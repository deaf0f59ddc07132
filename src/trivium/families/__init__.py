"""Architectures of Hugging Face, one file each. Nothing else knows the name of an architecture."""
