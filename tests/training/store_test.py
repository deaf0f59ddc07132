"""A training whose checkpoints are at a URL is the same training, and goes on from there on a machine without it."""

import json

import pytest

from chaos.scene import job, write_tokens
from stores.conftest import bucket, store  # noqa: F401
from trivium.checkpoint.load import Checkpoint
from trivium.plan.parameters import Box
from trivium.stores.folder import download, published_files
from trivium.training.metrics import METRICS, read
from trivium.training.supervision.job import start
