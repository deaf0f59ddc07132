"""An accelerator for each rank or for none: what ranks say of theirs where they meet, and what is wrong with it."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from trivium.errors import ConfigError, TriviumError
from trivium.units import counted

HOSTS_TOLD = 8


class Taken(NamedTuple):
    """What a rank computes on. accelerator: what tells it from the others of its host; nothing for a processor."""

    host: str
    accelerator: str

    @property
    def words(self) -> str:
        """As a rank says it to others."""
        return json.dumps(self)

    @classmethod
    def of(cls, words: str) -> "Taken":
        """What another rank said."""
        return cls(*json.loads(words))


def identity(device: torch.device, rank: int) -> str:
    """What tells an accelerator from the others of its host, on which each process numbers those that it sees.

    Where its driver does not say, its number, if the process sees several. One that sees no other is taken to have it
    to itself; NCCL refuses two ranks on one.
    """
    if device.type == "cpu":
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return str(uuid)
    return str(device) if torch.cuda.device_count() > 1 else f"the one of rank {rank}"


def problem_of(ranks: Sequence[Taken], *, wanted: bool) -> TriviumError | None:
    """Why these ranks cannot compute together: some, or where accelerators are wanted all, lack one of their own.

    It is the fault of a host, and may be tried again, where hosts differ or accelerators are wanted; otherwise
    ConfigError.
    """
    ranks_of = Counter(each.host for each in ranks)
    found_on = Counter(each.host for each in set(ranks) if each.accelerator)
    short = [host for host in ranks_of if found_on[host] < ranks_of[host]]
    if not short or not (found_on or wanted):
        return None
    alike = len({(ranks_of[host], found_on[host]) for host in ranks_of}) == 1
    if alike and not wanted:
        there, found = ranks_of[short[0]], found_on[short[0]]
        return ConfigError(
            f"torchrun started {there} ranks on a host with {counted(found, 'GPU')}; start at most one rank for each "
            f"(--nproc-per-node {found}), or set CUDA_VISIBLE_DEVICES= to compute on processors"
        )
    told = [
        f"{host} has {counted(found_on[host], 'GPU')} for {counted(ranks_of[host], 'rank')}"
        for host in short[:HOSTS_TOLD]
    ]
    told += [f"{len(short) - HOSTS_TOLD:,} more hosts have too few"] if len(short) > HOSTS_TOLD else []
    why = "TRIVIUM_DEVICES=accelerators asks for that" if wanted else "as all or none of the hosts must have"
    return TriviumError(
        f"{', '.join(told)}: not one for each rank, {why}; see what nvidia-smi says there and start again, or set "
        f"TRIVIUM_DEVICES=any and CUDA_VISIBLE_DEVICES= on every host to compute on processors"
    )


def wrong_in(said: Sequence[str], *, wanted: bool) -> TriviumError | None:
    """The same of what ranks said; one whose device its caller chose says nothing."""
    return problem_of([Taken.of(words) for words in said if words], wanted=wanted)


def lacking(host: str, visible: int, ranks: int) -> TriviumError | None:
    """The same of ranks of one host that see the same accelerators, where these are wanted."""
    return problem_of([Taken(host, str(n) if n < visible else "") for n in range(ranks)], wanted=True)
