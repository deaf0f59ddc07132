"""What the certificate compares with, written a second time and plainly; no code of the engine."""
