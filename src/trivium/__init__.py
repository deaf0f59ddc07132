"""Trivium: train GPT-class language models as MT-NLG 530B was trained, from crawl to report, with proofs."""

__version__ = "0.1.0"
