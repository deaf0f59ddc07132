"""Tokens per second that `trivium serve` writes, by the number of clients that ask at the same time.

    python benchmarks/serving.py --json out.json [--rounds 3] [--report benchmarks/reports]

Servers of one model with random weights run at the same time and are measured in turn: one rank without batching (one
text at a time), one rank, and two tensor ranks. Each client sends two requests, one after the other: a prompt of 32
ids, no two alike, and 24 tokens to write. Only written tokens count. CPU seconds are those of all processes of the
server, and depend less than seconds on what else the machine does.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import requests
import torch
from circumstances import circumstances

from trivium.checkpoint.pieces import Part
from trivium.checkpoint.reshard import write_whole
from trivium.config import to_tree
from trivium.model.initialise import initial_values
from trivium.plan.batch import Batch
from trivium.plan.layers.part import Parameter
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.seeds import generator_for
from trivium.tokens.tokenizer import train_tokenizer

MODEL = {
    "layers": 4,
    "hidden": 256,
    "heads": 4,
    "sequence": 256,
    "norm": "rms_norm",
    "positions": "rotary",
    "feed_forward": "gated",
    "ffn": 1024,
    "bias": "none",
}
SIDES = {
    "1 rank, one text at a time": ["--tp", "1", "--set", "serve.together=1"],
    "1 rank": ["--tp", "1"],
    "2 ranks": ["--tp", "2"],
}
CLIENTS = (1, 4, 16)
PROMPT_IDS, WRITTEN_TOKENS, REQUESTS_PER_CLIENT = 32, 24, 2
SEED = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--report", type=Path, help="folder for serving-DATE.md and .json")
    options = parser.parse_args()
    record: dict[str, Any] = circumstances("benchmarks/serving.py", sys.argv[1:])
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        checkpoint, vocabulary, end = written_model(Path(folder))
        servers = {side: running.enter_context(server(checkpoint, words)) for side, words in SIDES.items()}
        rows: dict[str, dict[int, list[Spent]]] = {side: {n: [] for n in CLIENTS} for side in SIDES}
        for each in servers.values():
            ask(each.url, [1, 2, 3], 4, end)  # allocations and caches of the first request
        for number in range(options.rounds):
            for clients in CLIENTS:
                for side, each in servers.items():
                    rows[side][clients].append(measured(each, clients, number, vocabulary, end))
    record |= {
        "model": MODEL,
        "load": Path("/proc/loadavg").read_text().split()[:3],
        "rows": {side: {n: [each._asdict() for each in found[n]] for n in CLIENTS} for side, found in rows.items()},
    }
    write_json(options.json, record)
    print(page(record))
    if options.report:
        path = options.report / f"serving-{record['date'][:10]}.json"
        write_json(path, record)
        path.with_suffix(".md").write_text(page(record))


def written_model(root: Path) -> tuple[Path, int, int]:
    """Write a model with random weights and its tokenizer; return its folder, its vocabulary and the id that ends a
    text."""
    words = train_tokenizer(["The lighthouse opens at seven, and the keeper writes yes or no."] * 3, 300)
    words.save(root / "tokenizer.json")
    shape = ModelShape(**MODEL, vocabulary=words.vocabulary, end_of_text=words.end_of_text)
    plan = Plan(model=shape, batch=Batch(sequences=1))

    def part(row: Parameter) -> Part:
        box = Box(tuple(0 for _ in row.shape), row.shape)
        values = lambda: initial_values(row, shape, SEED, box).float()  # noqa: E731
        return Part(f"weights/{row.name}", row.shape, box, torch.float32, values)

    parts = [part(row) for row in parameters(shape)]
    about = {"samples": 0, "tokens_seen": 0, "updates": 0, "seed": SEED, "plan": to_tree(plan), "data": {}}
    return write_whole(root, 0, about, [parts]), words.vocabulary, words.end_of_text


class Server(NamedTuple):
    """A running server: its address and its first process."""

    url: str
    process: int

    def cpu_seconds(self) -> float:
        """Return the CPU time of the process and its ranks."""
        ranks = Path(f"/proc/{self.process}/task/{self.process}/children").read_text().split()
        fields = [Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split() for each in (self.process, *ranks)]
        return sum(int(f[11]) + int(f[12]) for f in fields) / os.sysconf("SC_CLK_TCK")  # user and system, proc(5)


class Spent(NamedTuple):
    """What the requests of one round took, in seconds."""

    seconds: float
    cpu_seconds: float


@contextmanager
def server(checkpoint: Path, words: list[str]) -> Iterator[Server]:
    """Start a server at a free port."""
    command = [sys.executable, "-m", "trivium", "serve", str(checkpoint), "--port", "0", *words]
    command += ["--set", "serve.deadline_seconds=600"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None, "the output of a server is a pipe"
        try:
            yield Server(process.stdout.readline().split()[-1], process.pid)
        finally:
            process.terminate()


def ask(url: str, prompt: list[int], tokens: int, end: int) -> None:
    """Let a server write tokens after a prompt. The end of the text is excluded, so that all are written."""
    body: Any = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "logit_bias": {str(end): -100}}
    found = requests.post(f"{url}v1/completions", json=body, timeout=600).json()
    assert found["usage"]["completion_tokens"] == tokens, json.dumps(found)[:500]


def measured(of: Server, clients: int, number: int, vocabulary: int, end: int) -> Spent:
    """Return the time until all clients have their answers. number: of the round, which has prompts of its own."""

    def client(which: int) -> None:
        for request in range(REQUESTS_PER_CLIENT):
            draw = generator_for(SEED, "prompt", number, clients, which, request)
            ask(of.url, draw.integers(1, vocabulary, PROMPT_IDS).tolist(), WRITTEN_TOKENS, end)

    with ThreadPoolExecutor(clients) as threads:
        begin, cpu = time.perf_counter(), of.cpu_seconds()
        list(threads.map(client, range(clients)))
        return Spent(time.perf_counter() - begin, of.cpu_seconds() - cpu)


def page(record: dict[str, Any]) -> str:
    """Return the report."""
    machine = record["machine"]
    head = "| server | " + " | ".join(f"{n} client{'s' if n > 1 else ''}" for n in CLIENTS) + " |"
    rule = "| --- |" + " ---: |" * len(CLIENTS)
    rates, costs = [head, rule], [head, rule]
    for side, by_clients in record["rows"].items():
        rate, cost = [], []
        for clients, rounds in by_clients.items():
            tokens = int(clients) * REQUESTS_PER_CLIENT * WRITTEN_TOKENS
            each = [tokens / one["seconds"] for one in rounds]
            rate.append(f"{median(each):.1f} ({min(each):.1f} to {max(each):.1f})")
            cost.append(f"{1000 * median(one['cpu_seconds'] for one in rounds) / tokens:.1f}")
        rates.append(f"| {side} | " + " | ".join(rate) + " |")
        costs.append(f"| {side} | " + " | ".join(cost) + " |")
    lines = [
        "# Serving",
        "",
        f"Date: {record['date'][:10]}. Commit: {record['commit']}. Command: `{record['command']}`. "
        f"{machine['processor']}, {machine['cores']} cores. Other work kept the load average at "
        f"{record['load'][0]} to {record['load'][2]}, so that rates are far below those of an idle machine, and two "
        f"ranks wait for each other's turn. Model: {MODEL['layers']} layers of {MODEL['hidden']} columns, fp32, random "
        f"weights. Each client sends {REQUESTS_PER_CLIENT} requests, one after the other, of {PROMPT_IDS} ids and "
        f"{WRITTEN_TOKENS} tokens to write.",
        "",
        "Written tokens per second: median of the rounds (range).",
        "",
        *rates,
        "",
        "CPU milliseconds of all processes of the server per written token: median of the rounds.",
        "",
        *costs,
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
