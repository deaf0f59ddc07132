"""Peers that run in environments of their own: how they are installed, started, and given their turns."""
