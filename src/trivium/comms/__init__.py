"""Reads a layout and this process's rank. Provides groups, collectives and the messages between ranks."""
