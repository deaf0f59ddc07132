"""Tokenize curated documents (`trivium-documents-1` and `blend.json`).

Writes a tokenizer, Megatron-compatible `.bin/.idx` shards, their lineage and a manifest (`trivium-tokens-1`).
"""
