"""A small run as the printed torchrun job trains it."""

from pathlib import Path

import yaml

from trivium.cli import launch as launching
from trivium.cli.run_config import Given, resolve
from trivium.cost.hardware import machine_named
from trivium.provenance import STAMP, describe, write_json
from trivium.training.metrics import read

STEPS = 24
CONFIG = {
    "plan": {
        "model": {"layers": 4, "hidden": 24, "heads": 4, "vocabulary": 300, "vocabulary_multiple": 2, "sequence": 8},
        "batch": {"sequences": 8, "micro": 2},
        "precision": {"weights": "fp64"},
    },
    "tokens": {"vocabulary": 300},
    "seed": 11,
}
TRAINING = {
    "steps": STEPS,
    "checkpoint_every": 4,
    "validate_every": 1000,
    "validation_samples": 8,
    "decay_tokens": 1000000,
    "restarts": 5,
}


def job_script(folder: Path, tokens: Path, nodes: int = 2, steps: int = STEPS, **supervision: float) -> Path:
    """The job file of a run of two ranks on each host, as `trivium launch --print torchrun` writes it."""
    write_json(tokens / STAMP, describe(verb="tokenize", config={}, inputs={}))
    config = CONFIG | {"training": TRAINING | {"steps": steps, "supervision": supervision}}
    config["plan"] = CONFIG["plan"] | {"layout": {"tensor": 2, "data": nodes}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    words = f"--out {folder / 'run'} --preset {folder / 'config.yaml'} --tokens {tokens}"
    found = resolve(Given(str(folder / "config.yaml")))
    more = {"image": "", "claim": "", "arguments": words}
    machine = machine_named("dgx-h100").model_copy(update={"nodes": nodes, "devices_per_node": 2})
    text = launching.job_file(launching.Target.torchrun, found, machine, folder / "run", more)
    (folder / "job.sh").write_text(text)
    return folder / "job.sh"


def losses(metrics: Path) -> dict[int, float]:
    return {m["step"]: m["loss"] for m in read(metrics) if "loss" in m}
