"""The device of each rank: what ranks report of their GPUs when they connect, and what is wrong with it."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from trivium.errors import ConfigError, TriviumError
from trivium.units import counted

MAX_LISTED_HOSTS = 8
# NCCL from here on lets ranks share a GPU when it is asked to.
_SHARES_SINCE = (2, 30)
SHARE = "set TRIVIUM_DEVICES=shared to let ranks share a GPU"


class Taken(NamedTuple):
    """The device of a rank. accelerator: identifies a GPU among those of its host; empty for a CPU."""

    host: str
    accelerator: str

    @property
    def words(self) -> str:
        """The text in which a rank reports it to others."""
        return json.dumps(self)

    @classmethod
    def of(cls, words: str) -> "Taken":
        """Return the device that another rank reported."""
        return cls(*json.loads(words))


def identity(device: torch.device, rank: int) -> str:
    """Return a text that identifies a GPU among those of its host, on which each process numbers the visible ones from
    0.

    If the driver does not report one, it is the number, if the process sees several GPUs. A process that sees only one
    is assumed to have it alone; NCCL rejects two ranks on one.
    """
    if device.type == "cpu":
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return str(uuid)
    return str(device) if torch.cuda.device_count() > 1 else f"the one of rank {rank}"


def environment_of_shared(version: Sequence[int], rank: int, hosts: int) -> dict[str, str]:
    """The settings with which NCCL of this version lets a rank share its GPU with others.

    Older versions refuse two ranks with the same host and GPU, so each rank names a host of its own. Between hosts they
    would use the network card or the GPU's own links, which lead from a GPU to another one: sockets lead back to it.
    Few blocks leave room for the kernels of the others.
    """
    few = {"NCCL_NVLS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}
    if tuple(version) >= _SHARES_SINCE:
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", **few}
    settings = {
        "NCCL_HOSTID": f"trivium-rank-{rank}",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        **few,
    }
    # No other host can be reached through the loopback interface.
    return settings | ({"NCCL_SOCKET_IFNAME": "lo"} if hosts == 1 else {})


def problem_of(ranks: Sequence[Taken], *, wanted: bool, shared: bool = False) -> TriviumError | None:
    """Why these ranks cannot compute together: some ranks, or where accelerators are wanted all, lack one of their own.

    shared: ranks may share an accelerator, but each needs one. The error is the fault of a host, and the start may be
    tried again, where hosts differ or accelerators are wanted; otherwise it is a ConfigError.
    """
    ranks_of = Counter(each.host for each in ranks)
    found_on = Counter(each.host for each in (ranks if shared else set(ranks)) if each.accelerator)
    short = [host for host in ranks_of if found_on[host] < ranks_of[host]]
    if not short or not (found_on or wanted or shared):
        return None
    alike = len({(ranks_of[host], found_on[host]) for host in ranks_of}) == 1
    if alike and not (wanted or shared):
        there, found = ranks_of[short[0]], found_on[short[0]]
        return ConfigError(
            f"torchrun started {there} ranks on a host with {counted(found, 'GPU')}; start at most one rank for each "
            f"(--nproc-per-node {found}), set CUDA_VISIBLE_DEVICES= to compute on processors or, for a test that may "
            f"be slow, {SHARE}"
        )
    told = [
        f"{host} has {counted(found_on[host], 'GPU')} for {counted(ranks_of[host], 'rank')}"
        for host in short[:MAX_LISTED_HOSTS]
    ]
    told += [f"{len(short) - MAX_LISTED_HOSTS:,} more hosts have too few"] if len(short) > MAX_LISTED_HOSTS else []
    why = "not one for each rank, as all or none of the hosts must have"
    if wanted:
        why = "not one for each rank, and TRIVIUM_DEVICES=accelerators asks for that"
    if shared:
        why = "some ranks find none, and TRIVIUM_DEVICES=shared asks for one"
    could_share = not shared and all(found_on[host] for host in ranks_of)
    return TriviumError(
        f"{', '.join(told)}: {why}; see what nvidia-smi says there and start again, or set TRIVIUM_DEVICES=any and "
        f"CUDA_VISIBLE_DEVICES= on every host to compute on processors"
        + (f"; for a test that may be slow, {SHARE}" if could_share else "")
    )


def wrong_in(said: Sequence[str], *, wanted: bool, shared: bool = False) -> TriviumError | None:
    """The problem of ranks that said this of theirs; one whose device its caller chose says nothing."""
    return problem_of([Taken.of(words) for words in said if words], wanted=wanted, shared=shared)


def lacking(host: str, visible: int, ranks: int, *, shared: bool = False) -> TriviumError | None:
    """The problem of ranks of one host that see the same accelerators, where these are wanted."""
    taken = [n % visible if visible and (shared or n < visible) else None for n in range(ranks)]
    return problem_of([Taken(host, "" if n is None else str(n)) for n in taken], wanted=not shared, shared=shared)
