"""Operations on the tensors of one rank, and what is faster for them on a processor or an accelerator."""
