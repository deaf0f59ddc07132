"""One training step of the same GPT in Trivium and in what a user would pick instead, each in its own environment.

    python benchmarks/step.py --json out.json [--rows fp32,overheads] [--rounds 12] [--merge] [--report folder]

A ratio is peer seconds over Trivium seconds: above 1, Trivium is faster. All sides of a row start from the same
weights and train on the same batches with AdamW and gradients clipped to norm 1; they take their steps in turn, in
three launches where there are rounds enough: ratios are the medians over them. On AMD processors with AVX-512 every
peer has MKL's fast kernels preloaded, which Trivium loads by itself; "as installed" is the same peer without.
--merge adds to (or replaces in) the file what is measured now, so that a long run can be taken in pieces.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from contest import Pair, comparison
from launches import over_launches, rounds_of_launches, together
from loader import loader_rows
from overheads import overhead_rows
from peers.duel import Contest, compete
from peers.environment import PRELOADED, environments, fast_mkl
from peers.side import Entry
from pieces import Row, measure, options, report
from setting import HIDDEN_256, HIDDEN_512, Setting
from step_page import AS_INSTALLED, step_page

OURS = "trivium"
ROUNDS = 12
CLIP = 1.0
NOT_INSTALLED = "not installed: python benchmarks/external.py --install"
NOT_RUN = {"torchtitan 0.3.0": "its trainer starts CUDA before anything else: it cannot train on a processor"}


def rows() -> list[Row]:
    """Every row, in the order of the report."""
    found: list[Row] = []
    for ranks in (1, 2):
        for setting in (HIDDEN_256, HIDDEN_512):
            for weights in ("fp32", "bf16"):
                found.append(_contest_row(_contest(setting, ranks, weights)))
    return [*found, *overhead_rows(), *loader_rows()]


def _contest_row(contest: Contest) -> Row:
    return contest.name, lambda rounds: _measured(contest, rounds)


def _contest(setting: Setting, ranks: int, weights: str) -> Contest:
    batch = setting.sequences if ranks == 1 else max(ranks, setting.sequences)
    setting = replace(
        setting.with_batch(batch, batch // ranks), weights="bf16" if weights == "bf16" else "fp32", clip=CLIP
    )
    processes = "one process" if ranks == 1 else f"{ranks} processes"
    return Contest(
        name=f"{processes} {setting.name} {weights}",
        ranks=ranks,
        setting=setting,
        entries=tuple(_entries(setting, ranks)),
        says=_says(weights),
    )


def _says(weights: str) -> str:
    if weights == "fp32":
        return "fp32 throughout; every side clips by the global norm of the gradient."
    return (
        "Products in bf16, master weights, moments and accumulated gradients in fp32. Trivium and DeepSpeed keep a "
        "bf16 copy of the weights, the others cast under autocast. Where the processor multiplies bf16 the more "
        "slowly Trivium makes these products in fp32."
    )


def _entries(setting: Setting, ranks: int) -> list[Entry]:
    """Trivium first. megatron-core only in fp32: its bf16 optimizer accepts only CUDA tensors."""
    here, fast, known = Path(sys.executable), fast_mkl(), environments()
    tuned = dict(os.environ) | fast

    def peer(name: str, environment: str, module: str, function: str, **options: Any) -> Entry:
        e = known[environment]
        return Entry(name, f"peers.{module}", function, options, e.python, e.surroundings() | RUN_ID | fast)

    found = [
        Entry(OURS, "trivium_engine", "trivium", {"zero": 1, "layout": {"data": ranks}}, here, tuned),
        Entry("plain loop", "peers.plain_loop", "plain_loop", {}, here, tuned),
        # Given what Trivium's runtime does for itself: most of a step's memory then comes without page faults.
        Entry("plain loop, freed memory kept", "peers.plain_loop", "plain_loop", {}, here, tuned | KEPT_MEMORY),
        Entry("plain loop, compiled", "peers.plain_loop", "plain_loop", {"compiled": True}, here, tuned),
        peer("transformers + accelerate", "transformers", "transformers_engine", "accelerated"),
        peer("Lightning Fabric", "Fabric", "fabric_engine", "fabric"),
        peer("litgpt in Fabric", "Fabric", "fabric_engine", "litgpt_model"),
        peer("DeepSpeed ZeRO-1", "DeepSpeed", "deepspeed_engine", "zero", stage=1),
    ]
    if setting.weights == "fp32" and ranks == 1:
        found.append(peer("megatron-core", "megatron-core", "megatron_engine", "megatron"))
    return [*found, *(_as_installed(each) for each in found[1:] if fast)]


def _as_installed(peer: Entry) -> Entry:
    """Return a peer whose MKL chooses its kernels itself."""
    variables = {name: value for name, value in peer.variables.items() if name != PRELOADED}
    if PRELOADED in os.environ:
        variables[PRELOADED] = os.environ[PRELOADED]
    return replace(peer, name=f"{peer.name}{AS_INSTALLED}", variables=variables)


KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
# Fabric then takes the ranks it was started as, instead of starting ranks of its own.
RUN_ID = {"TORCHELASTIC_RUN_ID": "step"}


def _measured(contest: Contest, rounds: int) -> dict[str, Any]:
    """A result whose comparisons name every peer, the one that failed too; `fastest` is the best of the others."""
    entries = tuple(e for e in contest.entries if e.python.exists())
    lacking = {e.name: NOT_INSTALLED for e in contest.entries if e not in entries}
    contest = replace(contest, entries=entries)
    launches = [compete(contest, n) for n in rounds_of_launches(rounds)]
    result = together(launches)
    pairs = [Pair(OURS, e.name, 1.0) for e in entries if e.name != OURS]
    result["comparisons"] = [over_launches([comparison(pair, each) for each in launches]) for pair in pairs]
    result["not_run"] = lacking | NOT_RUN
    measured = {c["peer"]: c["ratio"] for c in result["comparisons"] if c["status"] == "measured"}
    result["fastest"] = min(measured, key=measured.__getitem__, default=None)
    memory = {n: m["above_imports"] for n, m in result["memory"].items()}
    result["lowest_memory"] = min(memory, key=memory.__getitem__, default=None)
    return result


def main(arguments: list[str]) -> int:
    """Run the rows and write the reports; exit code 1 when Trivium itself could not be measured in one."""
    asked = options(__doc__, ROUNDS, arguments)
    record = measure("step", rows(), asked, arguments, _lines)
    report("step", record, asked.report, step_page)
    return int(any(r["status"] == "failed" or OURS in r.get("failed", {}) for r in record["rows"]))


def _lines(result: dict[str, Any]) -> str:
    if "comparisons" not in result:
        return f"{result['name']}: {result['summary']}"
    shown = [f"{result['name']}: {result['seconds'].get(OURS, {}).get('median', float('nan')):.4f} s"]
    for c in result["comparisons"]:
        peer = f"  {c['peer']}: "
        if c["status"] != "measured":
            shown.append(f"{peer}{c['status']}: {c['reason']}")
            continue
        mine, theirs = (result["memory"][n]["above_imports"] / 2**20 for n in (OURS, c["peer"]))
        shown.append(f"{peer}{c['ratio']:.2f}, memory {mine:.0f} / {theirs:.0f} MiB")
    return "\n".join(shown)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1:]))
