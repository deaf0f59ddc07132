"""The device of each rank: ranks report their GPUs when they connect, and conflicts become errors."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import torch

from trivium.errors import ConfigError, TriviumError
from trivium.units import counted

MAX_LISTED_HOSTS = 8
RECORDED_MESSAGES = 2000  # the newest of each rank
# From this version on, NCCL has a setting that lets ranks share a GPU.
_SHARES_SINCE = (2, 30)
SHARE = "set TRIVIUM_DEVICES=shared to let ranks share a GPU"


class Taken(NamedTuple):
    """The device of a rank. accelerator: identifies a GPU among those of its host; empty for a CPU."""

    host: str
    accelerator: str

    @property
    def words(self) -> str:
        """The text in which a rank reports its device to others."""
        return json.dumps(self)

    @classmethod
    def of(cls, words: str) -> "Taken":
        """Return the device that another rank reported."""
        return cls(*json.loads(words))


def identity(device: torch.device, rank: int) -> str:
    """Return a text that identifies a GPU among those of its host. Its number does not, because each process numbers
    its visible GPUs from 0.

    If the driver reports no UUID, the number is returned for a process that sees several GPUs. A process that sees one
    is assumed to have it alone; NCCL rejects two ranks on one GPU.
    """
    if device.type == "cpu":
        return ""
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    if uuid is not None:
        return str(uuid)
    return str(device) if torch.cuda.device_count() > 1 else f"the one of rank {rank}"


def environment_of_gpus(records: str | None) -> dict[str, str]:
    """Return the environment variables that torch reads when a process first uses its GPU.

    Growing segments keep the allocator's reserve from fragmenting. records: prefix of the files into which each rank
    writes its last messages when one of them fails or times out (`torch.distributed.flight_recorder` reads them).
    """
    settings = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    if records is None:
        return settings
    return settings | {
        "TORCH_FR_BUFFER_SIZE": str(RECORDED_MESSAGES),
        "TORCH_FR_DUMP_TEMP_FILE": records,
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
    }


def environment_of_shared(version: Sequence[int], rank: int, hosts: int) -> dict[str, str]:
    """Return the environment variables with which this version of NCCL lets a rank share its GPU with others.

    Older versions reject two ranks with the same host and GPU, so each rank gets its own host name. Between hosts they
    would use the network card or the links between GPUs, neither of which leads back to the same GPU; sockets do.
    Few thread blocks leave room for the kernels of the other ranks.
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
    """Return an error if only some ranks have a GPU of their own, or if `wanted` is set and any rank lacks one.

    shared: several ranks may use one GPU, but each needs one. If hosts differ, or if GPUs are wanted, a host is at
    fault and the start may be repeated, so the error is a TriviumError; otherwise it is a ConfigError.
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
        why = "not one for each rank, and TRIVIUM_DEVICES=accelerators requires that"
    if shared:
        why = "some ranks find none, and TRIVIUM_DEVICES=shared requires one"
    could_share = not shared and all(found_on[host] for host in ranks_of)
    return TriviumError(
        f"{', '.join(told)}: {why}; see what nvidia-smi says there and start again, or set TRIVIUM_DEVICES=any and "
        f"CUDA_VISIBLE_DEVICES= on every host to compute on processors"
        + (f"; for a test that may be slow, {SHARE}" if could_share else "")
    )


def wrong_in(said: Sequence[str], *, wanted: bool, shared: bool = False) -> TriviumError | None:
    """Return the problem of ranks that reported these devices. A rank whose caller chose the device reports nothing."""
    return problem_of([Taken.of(words) for words in said if words], wanted=wanted, shared=shared)


def lacking(host: str, visible: int, ranks: int, *, shared: bool = False) -> TriviumError | None:
    """Return the problem of the ranks of one host that need GPUs and all see the same ones."""
    taken = [n % visible if visible and (shared or n < visible) else None for n in range(ranks)]
    return problem_of([Taken(host, "" if n is None else str(n)) for n in taken], wanted=not shared, shared=shared)
