"""Generate text from a checkpoint: samples, continuations, and completions over HTTP."""
