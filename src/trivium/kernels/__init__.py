"""Operations on the tensors of one rank, with faster implementations for CPUs and GPUs."""
