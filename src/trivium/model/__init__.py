"""The transformer of a plan: the part that one rank holds. Its initial values depend only on names and the seed."""
