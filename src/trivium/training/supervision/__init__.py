"""Run a job: fork its ranks, find ranks that hang or died, handle signals, and restart from a checkpoint."""
