"""Runs a job: forks the ranks, finds one that hangs or died, passes signals on, and restarts from a checkpoint."""
