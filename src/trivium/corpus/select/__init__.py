"""Selection: which documents are trained on, by score or target set, without evaluation text."""
