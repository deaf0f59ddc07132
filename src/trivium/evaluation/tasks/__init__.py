"""Tasks as data: examples, prompt templates and scoring rules, built from evaluation passages or benchmark files."""
