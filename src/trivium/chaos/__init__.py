"""Reads nothing: it makes a small training of its own.

Writes that training's folder, while killing, corrupting and starving it; and counts what was lost.
"""
