"""Several sizes of one family, trained on the same batches and examined at the same checkpoints."""
