"""Training objectives: the cross-entropy of the next token, and a file for each term that is added to it."""
