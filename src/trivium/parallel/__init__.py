"""Pipeline, tensor, context and expert parallelism, and ZeRO: run a schedule on ranks, and shard the optimizer."""
