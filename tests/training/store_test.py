"""A training whose checkpoints are at a URL is the same training, and goes on from there on a machine without it."""



from stores.conftest import bucket, store  # noqa: F401
