"""One file for each optimizer rule; the name of the file is the name of the rule in a config."""
