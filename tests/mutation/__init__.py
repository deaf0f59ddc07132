"""Mutation testing: change one operator or constant at a time, and see whether the certificate or a test notices."""
