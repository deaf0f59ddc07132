"""Hosts of an elastic training are killed, frozen and cut off, and return: it continues on those that are left."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from chaos.cluster import Cluster
from chaos.scene import SEED, Tally, job, plan, write_tokens
from trivium.errors import TriviumError
from trivium.progress import Progress, silent
from trivium.provenance import STAMP, describe, write_json
from trivium.seeds import generator_for
from trivium.training.metrics import EVENTS, METRICS, read
from trivium.training.supervision.job import start

HOSTS = 4
PATIENCE_SECONDS = 600.0  # until this program gives up; the results say how long each recovery took
WITHIN_SECONDS = 120.0  # a longer recovery is a failure, if the machine runs nothing else
ROUNDING = 1e-9  # how much losses may differ between layouts; weights are fp64
# At the default rate of 3e-3 two unbroken runs in different layouts differ by more than ROUNDING after 1,426 steps.
LR = 1e-4
# A machine on which more ranks are always faster: otherwise one rank would be the best choice for so small a model.
_LINK = {"bandwidth": 1e12, "efficiency": 1.0, "latency_seconds": 1e-9, "start_seconds": 0.0}
MACHINE = {
    "base": "this-machine",
    "name": "slow-cores",
    "peak": dict.fromkeys(("fp64", "fp32", "bf16", "fp16"), 1e6),
    "node_link": _LINK,
    "fabric_link": dict(_LINK),  # YAML would write the same object as an alias
}


class Scene:
    """A training on the hosts of a cluster. counts: the value of --hosts."""

    def __init__(self, folder: Path, tokens: Path, cluster: Cluster, counts: str, **training: Any) -> None:
        self.cluster, self.out, self.near = cluster, folder / "run" / "training", folder / "near"
        folder.mkdir(parents=True, exist_ok=True)
        model = {"layers": 4, "hidden": 24, "heads": 4, "vocabulary": 300, "vocabulary_multiple": 2, "sequence": 8}
        supervision = {"lease_seconds": 8, "join_seconds": 60, "timeout_seconds": 60, "hang_seconds": 20}
        given = {"lr": LR, "steps": 100_000, "checkpoint_every": 8, "validate_every": 100_000, "validation_samples": 8}
        given |= {"decay_tokens": 1_000_000, "restarts": 5, "keep_last": 2, "supervision": supervision, **training}
        given["near"] = {"every": 3, "folder": str(folder / "near")}
        layout = {"data": len(cluster.names)}
        config = {
            "plan": {
                "model": model,
                "batch": {"sequences": 8, "micro": 1},
                "precision": {"weights": "fp64"},
                "layout": layout,
            },
            "tokens": {"vocabulary": 300},
            "seed": SEED,
            "machine": str(folder / "machine.yaml"),
            "training": given,
        }
        (folder / "machine.yaml").write_text(yaml.safe_dump(MACHINE))
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        self.words = ["train", "--preset", str(folder / "config.yaml"), "--tokens", str(tokens)]
        self.words += ["--out", str(folder / "run"), "--hosts", counts]

    def start(self, *names: str) -> None:
        for name in names:
            self.cluster.start(name, self.words)

    def events(self, *kinds: str, after: int = 0) -> list[dict[str, Any]]:
        return [e for e in read(self.out / EVENTS)[after:] if not kinds or e["event"] in kinds]

    def wait_for(self, seen: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not seen():
            if time.monotonic() > deadline or not any(map(self.cluster.runs, self.cluster.names)):
                raise TriviumError(f"the training did not continue; {self.cluster.told()}")
            time.sleep(0.2)

    def trains_on(self, after: int, *groups: set[str]) -> bool:
        """Return whether a round of exactly the hosts of a group has saved a checkpoint since event number `after`."""
        later = self.events("hosts met", "saved", after=after)
        rounds = [number for number, event in enumerate(later) if event["event"] == "hosts met"]
        return bool(rounds) and set(later[rounds[-1]]["hosts"]) in groups and len(later) - 1 > rounds[-1]

    def losses(self) -> dict[int, float]:
        return {m["step"]: m["loss"] for m in read(self.out / METRICS) if "loss" in m}


def lose_hosts(folder: Path, count: int, *, seed: int = SEED, progress: Progress = silent) -> dict[str, Any]:
    """Harm hosts `count` times; compare the losses with those of an unbroken run on one process. A job that waits for
    its hosts, and so keeps its layout, is compared with an unbroken run on the same hosts."""
    tokens = write_tokens(folder)
    write_json(tokens / STAMP, describe(verb="tokenize", config={}, inputs={}))
    cluster = Cluster(HOSTS, folder)
    try:
        tally = Tally(count, progress)
        found = elastic(Scene(folder / "elastic", tokens, cluster, f"1:{HOSTS}"), tally, count, seed)
        equal, wrong = _bitwise(folder, tokens, cluster, max(1, count // 10))
    finally:
        cluster.end()
    return {"host_failures": count, **found, **equal, "losses": tally.losses + wrong}


def elastic(
    scene: Scene, tally: Tally, count: int, seed: int, kinds_of_harm: Sequence[str] = ("kill", "cut", "freeze")
) -> dict[str, Any]:
    """Harm hosts, wait until those that are left train, and bring them back, sometimes after further harm."""
    cluster, draw = scene.cluster, generator_for(seed, "chaos", "hosts")
    down: dict[str, str] = {}  # kind of fault by host
    kinds, seconds, back, from_copies = Counter[str](), list[float](), list[float](), 0
    scene.start(*cluster.names)
    scene.wait_for(lambda: scene.trains_on(0, set(cluster.names)))
    for number in range(count):
        healthy = [name for name in cluster.names if name not in down]
        harmed = [str(name) for name in draw.permutation(healthy)[: 1 + int(draw.random() < 0.2)]]
        harmed = harmed[: len(healthy) - 1]
        kind = kinds_of_harm[int(draw.integers(len(kinds_of_harm)))]
        time.sleep(float(draw.exponential(1.0)))
        # One host keeps second copies of another, so that two lost hosts may cost the steps since the last checkpoint.
        kinds_of_save = ("saved", "copied near") if len(harmed) == 1 else ("saved",)
        after, saved = len(scene.events()), max(e["step"] for e in scene.events(*kinds_of_save))
        at = time.time()
        for name in harmed:
            {"kill": cluster.kill, "cut": lambda n: cluster.connect(n, on=False), "freeze": cluster.freeze}[kind](name)
            down[name] = kind
            if kind == "kill":  # with its memory
                shutil.rmtree(scene.near / name, ignore_errors=True)
            kinds[kind] += 1
        left = set(cluster.names) - set(down)
        groups = [left]
        if len(left) == 1:  # every host that is cut off may be the one that continues
            groups += [{name} for name, how in down.items() if how == "cut"]
        scene.wait_for(lambda after=after, groups=groups: scene.trains_on(after, *groups))
        resumed = scene.events("resumed", after=after)
        seconds.append(resumed[-1]["time"] - at)
        from_copies += bool(scene.events("near copy", after=after))
        lost = [f"resumed from step {e['step']}, though {saved} was saved" for e in resumed[:1] if e["step"] < saved]
        tally.add(f"{number}: {kind} {', '.join(harmed)}", lost, seconds[-1])
        if len(left) == 1 or draw.random() < 0.6 or number == count - 1:
            after, at = len(scene.events()), time.time()
            for name, how in down.items():
                _bring_back(scene, name, how)
            down.clear()
            scene.wait_for(lambda after=after: scene.trains_on(after, set(cluster.names)))
            back.append(scene.events("hosts met", after=after)[-1]["time"] - at)
    _end(scene)
    found = scene.losses()
    wrong = _compare(found, _on_one_process(scene, max(found)))
    tally.losses += wrong
    layouts = Counter(_words(e["layout"]) for e in scene.events("hosts met"))
    return {
        "by_kind": dict(kinds),
        "steps": max(found),
        "resumed_from_near_copies": from_copies,
        "rounds": len(scene.events("hosts met")),
        "layouts": dict(layouts),
        "returns": len(back),
        "seconds_to_resume": [round(s, 1) for s in seconds],
        "seconds_to_grow": [round(s, 1) for s in back],
        "over_two_minutes": sum(s > WITHIN_SECONDS for s in seconds),
    }


def _bring_back(scene: Scene, name: str, how: str) -> None:
    if how == "cut":
        scene.cluster.connect(name, on=True)
    elif how == "freeze":
        scene.cluster.thaw(name)
    if how == "kill" or not scene.cluster.runs(name):
        scene.start(name)


def _end(scene: Scene) -> None:
    """Request all hosts to leave, and wait until they have left."""
    for name in scene.cluster.names:
        scene.cluster.ask_to_end(name)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while any(map(scene.cluster.runs, scene.cluster.names)) and time.monotonic() < deadline:
        time.sleep(0.2)


def _bitwise(folder: Path, tokens: Path, cluster: Cluster, kills: int) -> tuple[dict[str, Any], list[str]]:
    """Kill and bring back hosts of a job that continues only with all of them: every loss must be that of an unbroken
    run, bit for bit."""
    steps = 60 * kills
    counts = f"{HOSTS}:{HOSTS}"
    broken, unbroken = (
        Scene(folder / name, tokens, cluster, counts, steps=steps, checkpoint_every=4)
        for name in ("broken", "unbroken")
    )
    broken.start(*cluster.names)
    for number in range(kills):
        broken.wait_for(lambda number=number: len(broken.losses()) > 60 * number + 10)
        after, name = len(broken.events()), cluster.names[number % HOSTS]
        cluster.kill(name)
        broken.start(name)
        broken.wait_for(lambda after=after: broken.trains_on(after, set(cluster.names)))
    for scene in (broken, unbroken):
        if scene is unbroken:
            scene.start(*cluster.names)
        while any(map(cluster.runs, cluster.names)):
            time.sleep(0.2)
    one, two = broken.losses(), unbroken.losses()
    differ = [step for step in range(1, steps + 1) if one.get(step) is None or one.get(step) != two.get(step)]
    return {"kills_in_one_layout": kills, "losses_compared_bitwise": steps}, [
        f"loss of step {s} differs" for s in differ
    ]


def _on_one_process(scene: Scene, steps: int) -> dict[int, float]:
    out = scene.out.parent.parent / "one"
    tokens = Path(scene.words[scene.words.index("--tokens") + 1])
    start(replace(job(tokens, out, plan({}), checkpoint_every=100_000, lr=LR), until=steps))
    return {m["step"]: m["loss"] for m in read(out / METRICS) if "loss" in m}


def _compare(found: dict[int, float], right: dict[int, float]) -> list[str]:
    missing = [f"no loss of step {step}" for step in range(1, max(found) + 1) if step not in found]
    far = [step for step in found if abs(found[step] - right[step]) > ROUNDING * abs(right[step])]
    return missing + [f"loss of step {s} is {found[s]!r}, and {right[s]!r} in the unbroken run" for s in far]


def _words(layout: dict[str, Any]) -> str:
    degrees = {k: v for k, v in layout.items() if isinstance(v, int) and v > 1}
    return ", ".join(f"{k} {v}" for k, v in degrees.items()) or "one rank"
