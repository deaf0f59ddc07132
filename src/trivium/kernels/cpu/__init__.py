"""Operations that are faster than the reference on a CPU."""
