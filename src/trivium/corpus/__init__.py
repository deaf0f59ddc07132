"""Make training documents from raw files: read → clean → dedup → select → publish."""
