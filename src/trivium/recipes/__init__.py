"""Published trainings: a folder each, with its settings, its text, and the band in which its curve lies."""
