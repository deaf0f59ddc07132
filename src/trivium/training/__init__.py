"""Train a model from token shards under a plan. Writes metrics, checkpoints, and a summary."""
