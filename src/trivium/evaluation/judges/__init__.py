"""Judge translations and summaries with language models, and measure how far judges agree with people."""
