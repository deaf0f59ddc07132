"""The module of a described part: the class of the same name, in the file of the same name."""

from importlib import import_module
from typing import Any

from trivium.plan.layers.part import Part


def kind_of(part: Part) -> Any:
    """Return the class of the module that computes a part."""
    file = type(part).__module__.rpartition(".")[2]
    return getattr(import_module(f"{__package__}.{file}"), type(part).__name__)
