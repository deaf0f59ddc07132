"""The store of `stores/conftest.py`, for trainings at a URL."""

from stores.conftest import bucket, store

__all__ = ("bucket", "store")
