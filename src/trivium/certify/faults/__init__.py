"""Reads the running code, one function at a time.

Writes a fault into it for as long as a context is open: what users of such systems have reported as silently wrong.
"""
