"""The counts of large jobs hold for a small one: pieces and size of the manifest are those of a real checkpoint."""

import importlib.util
import sys
from pathlib import Path

import pytest

from chaos.scene import SEED, plan
from trivium.checkpoint.format import MANIFEST
from trivium.checkpoint.pieces import DTYPES
from trivium.checkpoint.save import write_manifest
from trivium.comms.pretend import pretended
from trivium.training.config import TrainingConfig
from trivium.training.state import fragments
from trivium.training.trainer import Trainer, adam_rule

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "scale.py"


def scale():
    spec = importlib.util.spec_from_file_location("scale", SCRIPT)
    sys.modules["scale"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "layout",
    [{"tensor": 2, "pipeline": 2, "data": 2, "zero": 1}, {"data": 4, "zero": 2}, {"tensor": 2, "zero": 0}],
    ids=str,
)
def test_manifest_of_a_small_job_is_as_counted(tmp_path, layout) -> None:
    of = plan(layout, weights="bf16")
    files = []
    for rank in range(of.layout.world_size):
        with pretended(of.layout, rank) as mesh:
            held = fragments(Trainer(of, mesh, seed=SEED, rule=adam_rule(TrainingConfig())))
        file = f"pieces-{rank:05d}.safetensors"
        pieces = [
            {
                "name": f.name,
                "dtype": DTYPES[f.values.dtype],
                "shape": f.shape,
                "piece": {"file": file, "key": f"{n}:{f.name}", "start": f.box.start, "shape": f.box.shape},
            }
            for n, f in enumerate(held)
        ]
        files.append({"file": file, "sha256": "0" * 64, "bytes": 0, "pieces": pieces})
    write_manifest(tmp_path, {"step": 1}, files)
    count, size = scale().manifest(of, range(of.layout.tensor))
    assert count == sum(len(file["pieces"]) for file in files)
    assert size == pytest.approx((tmp_path / MANIFEST).stat().st_size, rel=0.1)
