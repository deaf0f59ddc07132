"""Reads a crawl: WARC, HTML, JSON lines, text.

Writes documents: curated, deduplicated, decontaminated, with the funnel and every rejected document.
"""
