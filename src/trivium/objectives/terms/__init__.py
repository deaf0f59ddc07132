"""Terms that are added to the cross-entropy, a file each."""
