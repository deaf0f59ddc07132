"""Cleaning: pages become plain text, and rules keep, change or drop single documents."""
