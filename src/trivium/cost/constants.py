"""The constants that every estimate shares: values, priors and where they come from, in constants.yaml."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import yaml
from pydantic import model_validator

from trivium.config import Config, build, shipped
from trivium.errors import ConfigError, nearest


@dataclass(frozen=True)
class Constants:
    """One vector for every run; units in constants.yaml. A fit prices many vectors at once, as columns of numbers."""

    gemm_ampere: float
    gemm_hopper: float
    gemm_blackwell: float
    gemm_cpu: float
    gemm_ramp: float
    gemm_wave: float
    misaligned: float
    memory: float
    operation_seconds: float
    launch_seconds: float
    flash_ampere: float
    flash_hopper: float
    flash_blackwell: float
    flash_cpu: float
    flash_ramp: float
    flash_width: float
    eager_traffic: float
    eager_products: float
    tensor_overlap: float
    fabric: float
    straggler: float
    data_overlap: float
    deepspeed_tensor: float
    deepspeed_gradient_bytes: float
    deepspeed_step_seconds: float
    remote_memory: float
    core_share: float

    def with_values(self, values: Mapping[str, Any]) -> "Constants":
        """A copy with some constants changed; an unknown name is a ConfigError that names the nearest."""
        for name in values:
            if name not in vars(self):
                raise ConfigError(f"there is no constant '{name}'; {nearest(name, vars(self))}")
        return replace(self, **values)


class Prior(Config):
    """A constant before any run was measured, its uncertainty, and the fitted value."""

    meaning: str
    prior: float
    spread: float  # the fit pays one unit for each spread away from the prior
    low: float
    high: float
    value: float  # fitted; equal to the prior where nothing was fitted
    source: str

    @model_validator(mode="after")
    def _inside(self) -> "Prior":
        for name in ("prior", "value"):
            found = getattr(self, name)
            if not self.low <= found <= self.high:
                raise ValueError(f"{name} {found} must be between low {self.low} and high {self.high}")
        return self


@lru_cache(maxsize=1)
def priors() -> dict[str, Prior]:
    """Return every constant of constants.yaml, in the order of the fields of Constants."""
    text = shipped("cost/constants.yaml").read_text(encoding="utf-8")
    tree = yaml.safe_load(text)
    return {name: build(Prior, tree[name]) for name in Constants.__dataclass_fields__}


@lru_cache(maxsize=1)
def shipped_constants() -> Constants:
    """The fitted values of constants.yaml."""
    return Constants(**{name: prior.value for name, prior in priors().items()})


@lru_cache(maxsize=1)
def prior_constants() -> Constants:
    """The priors of constants.yaml: nothing fitted."""
    return Constants(**{name: prior.prior for name, prior in priors().items()})
