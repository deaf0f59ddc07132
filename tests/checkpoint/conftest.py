"""The store of `stores/conftest.py`, for checkpoints at a URL."""

from stores.conftest import bucket, store

__all__ = ("bucket", "store")
