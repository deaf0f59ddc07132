"""From raw files to documents fit to train on: read → clean → dedup → select → publish."""
