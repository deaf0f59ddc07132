"""Runs a job: forks its ranks, finds ranks that hang or died, handles signals, and restarts from a checkpoint."""
