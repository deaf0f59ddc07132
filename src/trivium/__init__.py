"""Trivium: train GPT-class language models as MT-NLG 530B was trained, from crawl to report, with proofs.

The public names are listed below; docs/python.md shows how to use them. Each name is imported on first use, so that
`import trivium` is fast and planning never imports torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for editors and type checkers; _HOMES does the same at run time
    from trivium.checkpoint.format import published as published
    from trivium.checkpoint.load import Checkpoint as Checkpoint
    from trivium.comms.launch import connected as connected
    from trivium.comms.launch import run_ranks as run_ranks
    from trivium.comms.mesh import Mesh as Mesh
    from trivium.cost.estimate import Estimate as Estimate
    from trivium.cost.estimate import estimate as estimate
    from trivium.cost.hardware import Machine as Machine
    from trivium.cost.hardware import machine_from_file as machine_from_file
    from trivium.cost.hardware import machine_named as machine_named
    from trivium.errors import CheckpointError as CheckpointError
    from trivium.errors import ConfigError as ConfigError
    from trivium.errors import DataError as DataError
    from trivium.errors import MachineError as MachineError
    from trivium.errors import TriviumError as TriviumError
    from trivium.evaluation.answer import NativeScorer as NativeScorer
    from trivium.evaluation.requests import Request as Request
    from trivium.interchange.bring import import_hf as import_hf
    from trivium.interchange.export import export_hf as export_hf
    from trivium.interchange.target import Target as Target
    from trivium.interchange.target import opened as opened
    from trivium.parallel.sharding.zero import AdamRule as AdamRule
    from trivium.plan.batch import Batch as Batch
    from trivium.plan.layout import Layout as Layout
    from trivium.plan.model_shape import ModelShape as ModelShape
    from trivium.plan.plan import Plan as Plan
    from trivium.plan.precision import Precision as Precision
    from trivium.plan.recompute import Recompute as Recompute
    from trivium.planner.config import SearchSpace as SearchSpace
    from trivium.planner.grid import Subject as Subject
    from trivium.planner.search import search as search
    from trivium.serving.config import Drawing as Drawing
    from trivium.serving.writer import Writer as Writer
    from trivium.tokens.samples import TokenDataset as TokenDataset
    from trivium.tokens.shards import TokenShard as TokenShard
    from trivium.tokens.tokenizer import load_tokenizer as load_tokenizer
    from trivium.training.config import TrainingConfig as TrainingConfig
    from trivium.training.loop import TrainingJob as TrainingJob
    from trivium.training.state import restore as restore
    from trivium.training.state import save_state as save_state
    from trivium.training.supervision.job import start as start
    from trivium.training.trainer import Samples as Samples
    from trivium.training.trainer import Trainer as Trainer

__version__ = "0.2.0"

_HOMES = {
    # without torch: plans and costs
    "Plan": "plan.plan",
    "ModelShape": "plan.model_shape",
    "Layout": "plan.layout",
    "Batch": "plan.batch",
    "Precision": "plan.precision",
    "Recompute": "plan.recompute",
    "Machine": "cost.hardware",
    "machine_named": "cost.hardware",
    "machine_from_file": "cost.hardware",
    "Estimate": "cost.estimate",
    "estimate": "cost.estimate",
    "Subject": "planner.grid",
    "SearchSpace": "planner.config",
    "search": "planner.search",
    "TokenDataset": "tokens.samples",
    "TokenShard": "tokens.shards",
    "load_tokenizer": "tokens.tokenizer",
    # training: step by step, or as a job
    "AdamRule": "parallel.sharding.zero",
    "Mesh": "comms.mesh",
    "Trainer": "training.trainer",
    "Samples": "training.trainer",
    "save_state": "training.state",
    "restore": "training.state",
    "connected": "comms.launch",
    "run_ranks": "comms.launch",
    "TrainingConfig": "training.config",
    "TrainingJob": "training.loop",
    "start": "training.supervision.job",
    # use of checkpoints: scoring, generation and conversion
    "Checkpoint": "checkpoint.load",
    "published": "checkpoint.format",
    "Target": "interchange.target",
    "opened": "interchange.target",
    "NativeScorer": "evaluation.answer",
    "Request": "evaluation.requests",
    "Writer": "serving.writer",
    "Drawing": "serving.config",
    "export_hf": "interchange.export",
    "import_hf": "interchange.bring",
    # errors
    "TriviumError": "errors",
    "ConfigError": "errors",
    "MachineError": "errors",
    "DataError": "errors",
    "CheckpointError": "errors",
}
__all__ = ("__version__", *_HOMES)  # pyrefly: ignore[unresolvable-dunder-all]


if not TYPE_CHECKING:  # a type checker that sees this function accepts any name

    def __getattr__(name: str) -> Any:
        if name not in _HOMES:
            raise AttributeError(f"module 'trivium' has no attribute '{name}'; docs/python.md lists what it has")
        import_module("trivium.mkl").prefer_fast_kernels()
        return getattr(import_module(f"trivium.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
