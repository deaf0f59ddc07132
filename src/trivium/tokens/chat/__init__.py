"""Conversations and preference pairs: read, rendered by a chat template, encoded with their targets, and packed."""
