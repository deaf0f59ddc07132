"""Every token that the demo trains on, of the demo's own corpus, is found from its row and from its document."""

import subprocess
import sys

import pytest

from trivium.training.lineage.trace import round_trip
from trivium.training.record import read_record

TRIVIUM = (sys.executable, "-m", "trivium.cli.main")
# The order of the samples knows of no width: a narrow model on one process reads what the demo's does.
NARROW = ("plan.model.layers=1", "plan.model.hidden=8", "plan.model.heads=1", "plan.layout.tensor=1",
          "plan.layout.pipeline=1", "plan.layout.data=1", "plan.layout.chunks=1", "plan.schedule=1f1b",
          "plan.zero=0", "training.validation_samples=8")  # fmt: skip


@pytest.mark.slow
def test_every_row_of_the_demo_and_every_document_find_each_other(tmp_path) -> None:
    out = str(tmp_path / "run")
    subprocess.run([*TRIVIUM, "corpus", "run", "demo", "--out", out], check=True, capture_output=True)
    sets = [word for each in NARROW for word in ("--set", each)]
    subprocess.run([*TRIVIUM, "train", "--preset", "demo", "--out", out, *sets], check=True, capture_output=True)
    record = read_record(tmp_path / "run" / "training")
    found = round_trip(record)
    assert found["agrees"] and found["steps"] == record.training.steps == 200
    assert found["sightings"] > 10_000 and not found["wrong_hashes"]
