"""A bucket in a store of this test, on the loopback interface."""

import fsspec
import pytest

from corpus.servers import Store, serving
from trivium.stores import requests
from trivium.stores.remote import Remote


@pytest.fixture
def store(monkeypatch):
    s3fs = pytest.importorskip("s3fs", reason="s3fs is an extra: pip install -e '.[remote]'")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(requests, "WAIT_SECONDS", 0.01)
    with serving(Store()) as store:
        conf = {
            "s3": {
                "endpoint_url": store.url,
                "key": "KEYNAME",
                "secret": "SECRETWORD",
                "config_kwargs": {"retries": {"max_attempts": 0}},
            }
        }
        monkeypatch.setattr(fsspec.config, "conf", conf)
        yield store


@pytest.fixture
def bucket(store):
    return Remote("s3://bucket/run")
