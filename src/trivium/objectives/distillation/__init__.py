"""Training on the probabilities that a teacher gave the tokens."""
