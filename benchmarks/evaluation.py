"""Tokens scored and written per second, in turn with the harness's own model of the exported checkpoint.

    TRIVIUM_DATA=DIR python benchmarks/evaluation.py --json out.json [--rounds 3] [--rows hellaswag] [--size small]

One process. Both sides answer the same requests through the harness's interface, tokenizing included, and each row
says how far their answers are apart. A ratio is their seconds over ours: above 1, Trivium is faster.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from evaluation.hflm import load  # noqa: E402  (as the tests open an HFLM)
from trivium.checkpoint.load import Checkpoint  # noqa: E402
from trivium.checkpoint.pieces import Part  # noqa: E402
from trivium.checkpoint.reshard import write_whole  # noqa: E402
from trivium.config import to_tree  # noqa: E402
from trivium.evaluation.answer import NativeScorer  # noqa: E402
from trivium.evaluation.benchmark import benchmark_requests, prepare  # noqa: E402
from trivium.evaluation.config import BenchmarkConfig  # noqa: E402
from trivium.evaluation.harness import HarnessModel  # noqa: E402
from trivium.evaluation.tasks.definition import definition  # noqa: E402
from trivium.evaluation.tasks.rows import local_rows  # noqa: E402
from trivium.interchange.export import export_hf  # noqa: E402
from trivium.model.initialise import initial_values  # noqa: E402
from trivium.plan.batch import Batch  # noqa: E402
from trivium.plan.model_shape import ModelShape  # noqa: E402
from trivium.plan.parameters import Box, parameters  # noqa: E402
from trivium.plan.plan import Plan  # noqa: E402
from trivium.provenance import code_commit, write_json  # noqa: E402
from trivium.tokens.tokenizer import load_tokenizer  # noqa: E402

SIZES = {"small": (4, 256, 8), "medium": (8, 512, 8)}  # layers, hidden, heads
SEQUENCE, SEED, BATCH = 1024, 5, 16
WRITTEN_TOKENS, PROMPTS = 64, 8


class Row(NamedTuple):
    """What is asked: a task, shots, how they are drawn, questions, and the ratio that is demanded."""

    task: str
    shots: int
    drawn: str
    questions: int
    demanded: float

    @property
    def name(self) -> str:
        how = "" if not self.shots else ", the same for all" if self.drawn == "once" else ", drawn for each"
        return f"{self.task}, {self.shots} shots{how}"


ROWS = (
    Row("hellaswag", 0, "each", 30, 2.0),
    Row("hellaswag", 5, "once", 8, 2.0),
    Row("hellaswag", 5, "each", 8, 2.0),
    Row("boolq", 5, "once", 12, 2.0),
    Row("boolq", 5, "each", 12, 2.0),
    Row("boolq", 0, "each", 40, 1.2),
    Row("lambada", 0, "each", 60, 1.2),
    Row("piqa", 0, "each", 60, 1.2),
    Row("winogrande", 0, "each", 100, 1.2),
    Row("anli_r2", 0, "each", 40, 1.2),
    Row("wic", 0, "each", 80, 1.2),
)


def main(arguments: list[str]) -> int:
    """Measure the rows and write the record; exit code 1 when a demand is not met."""
    options = _options(arguments)
    data = Path(os.environ["TRIVIUM_DATA"])
    with tempfile.TemporaryDirectory() as folder:
        ours, theirs = _both(Path(folder), data / "tokenizer/gpt2/tokenizer.json", SIZES[options.size])
        record: dict[str, Any] = _circumstances(options)
        for row in ROWS:
            if _is_wanted(row.name, options):
                record["rows"].append(_score(row, ours, theirs, data / "tasks", options.rounds))
                print(_line(record["rows"][-1]), flush=True)
        if _is_wanted("generation", options):
            record["rows"] += _write(ours, theirs, data / "tasks", options.rounds)
            print(*map(_line, record["rows"][-2:]), sep="\n", flush=True)
    for earlier in options.with_rows_of:
        found = json.loads(Path(earlier).read_text())
        record["rows"] += [{**row, "measured": f"{found['date']}, {found['commit']}"} for row in found["rows"]]
    write_json(Path(options.json), record)
    if options.report:
        name = f"evaluation-{record['date'][:10]}"
        write_json(Path(options.report) / f"{name}.json", record)
        (Path(options.report) / f"{name}.md").write_text(_page(record))
    return int(not all(r["ratio"] >= r["demanded"] for r in record["rows"]))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="where the figures go")
    parser.add_argument("--report", help="folder for a dated report")
    parser.add_argument("--with-rows-of", nargs="*", default=[], help="records whose rows are added")
    parser.add_argument("--rows", default="", help="only rows whose name contains one of these, by commas")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each, in turn")
    parser.add_argument("--size", choices=SIZES, default="small")
    return parser.parse_args(arguments)


def _is_wanted(name: str, options: argparse.Namespace) -> bool:
    return any(part.strip() in name for part in options.rows.split(","))


def _circumstances(options: argparse.Namespace) -> dict[str, Any]:
    layers, hidden, heads = SIZES[options.size]
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": code_commit(),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "model": f"gpt, {layers} layers, hidden {hidden}, {heads} heads, 50,257 tokens of GPT-2, sequence {SEQUENCE}, "
        "fp32, random weights",
        "hflm_batch": BATCH,
        "rounds": options.rounds,
        "rows": [],
    }


def _both(root: Path, tokenizer: Path, size: tuple[int, int, int]) -> tuple[HarnessModel, Any]:
    """The same weights as a checkpoint of ours and as a folder of Hugging Face."""
    layers, hidden, heads = size
    words = load_tokenizer(tokenizer)
    model = ModelShape(
        layers=layers, hidden=hidden, heads=heads, vocabulary=words.vocabulary, sequence=SEQUENCE,
        end_of_text=words.end_of_text,
    )  # fmt: skip
    plan = Plan(model=model, batch=Batch(sequences=1))
    parts = []
    for row in parameters(model):
        box = Box(tuple(0 for _ in row.shape), row.shape)
        parts.append(
            Part(
                f"weights/{row.name}", row.shape, box, torch.float32,
                lambda row=row, box=box: initial_values(row, model, SEED, box).float(),
            )
        )  # fmt: skip
    about = {"samples": 0, "tokens_seen": 0, "updates": 0, "seed": SEED, "plan": to_tree(plan), "data": {}}
    checkpoint = write_whole(root / "ours", 0, about, [parts])
    export_hf(Checkpoint.open(checkpoint), root / "hf", tokenizer=tokenizer)
    ours = HarnessModel(scorer=NativeScorer.open(checkpoint, tokenizer))
    return ours, load(root / "hf", batch_size=BATCH)


def _score(row: Row, ours: HarnessModel, theirs: Any, tasks: Path, rounds: int) -> dict[str, Any]:
    config = BenchmarkConfig(limit=row.questions, shots=(row.shots,), shots_drawn=row.drawn, seed=SEED)
    of = definition(row.task)
    requests = benchmark_requests(prepare(of, local_rows(of, tasks), config), row.shots, config)
    asked = [Instance("loglikelihood", {}, (r.context, r.continuation), n) for n, r in enumerate(requests)]
    encoded = ours.scorer.tokenizer.encode_batch([r.context + r.continuation for r in requests])
    tokens = sum(min(len(ids), SEQUENCE + 1) for ids in encoded)
    mine, yours = in_turn(
        lambda: ours.loglikelihood(asked, disable_tqdm=True),
        lambda: theirs.loglikelihood(asked, disable_tqdm=True),
        rounds,
    )
    apart = [abs(a[0] - b[0]) - 1e-6 * abs(b[0]) for a, b in zip(mine.result, yours.result, strict=True)]
    flags = sum(a[1] != b[1] for a, b in zip(mine.result, yours.result, strict=True))
    return {
        "row": row.name, "requests": len(requests), "tokens": tokens, "demanded": row.demanded,
        "largest_difference": max(apart), "greedy_flags_that_differ": flags,
        "truncated": sum(len(ids) > SEQUENCE + 1 for ids in encoded),
        **_figures(mine, yours, tokens),
    }  # fmt: skip


def _write(ours: HarnessModel, theirs: Any, tasks: Path, rounds: int) -> list[dict[str, Any]]:
    """Generation, 8 prompts side by side: greedy through the harness, and sampled against `generate`."""
    of = definition("lambada")
    texts = [str(r["text"])[:200] for r in local_rows(of, tasks).asked[:PROMPTS]]
    settings = {"until": [], "max_gen_toks": WRITTEN_TOKENS, "do_sample": False}
    asked = [Instance("generate_until", {}, (t, dict(settings)), n) for n, t in enumerate(texts)]
    mine, yours = in_turn(
        lambda: ours.generate_until(asked, disable_tqdm=True),
        lambda: theirs.generate_until(asked, disable_tqdm=True),
        rounds,
    )
    rows = [
        {
            "row": f"generation, greedy, {PROMPTS} prompts, {WRITTEN_TOKENS} tokens, through the harness",
            "texts_that_differ": sum(a != b for a, b in zip(mine.result, yours.result, strict=True)),
            **_figures(mine, yours, PROMPTS * WRITTEN_TOKENS),
        }
    ]
    drawn = {"until": [], "max_gen_toks": WRITTEN_TOKENS, "do_sample": True, "temperature": 1.0, "top_p": 0.9}
    sampled = [Instance("generate_until", {}, (t, dict(drawn)), n) for n, t in enumerate(texts)]
    theirs.tokenizer.pad_token, theirs.tokenizer.padding_side = theirs.tokenizer.eos_token, "left"
    given = theirs.tokenizer(texts, return_tensors="pt", padding=True)

    def generate() -> torch.Tensor:
        with torch.inference_mode():
            return theirs.model.generate(
                **given, max_new_tokens=WRITTEN_TOKENS, min_new_tokens=WRITTEN_TOKENS,
                do_sample=True, temperature=1.0, top_p=0.9, top_k=0,
            )  # fmt: skip

    mine, yours = in_turn(lambda: ours.generate_until(sampled, disable_tqdm=True), generate, rounds)
    name = f"generation, top-p 0.9, {PROMPTS} prompts, {WRITTEN_TOKENS} tokens, against transformers' generate"
    rows.append({"row": name, **_figures(mine, yours, PROMPTS * WRITTEN_TOKENS)})
    return [{"demanded": 1.5, **r} for r in rows]


class Timed(NamedTuple):
    """Seconds of each round, and what came out of the last."""

    seconds: list[float]
    result: Any


def in_turn(mine: Callable[[], Any], yours: Callable[[], Any], rounds: int) -> tuple[Timed, Timed]:
    """Each once to warm up, then one after the other."""
    both = (Timed([], None), Timed([], None))
    for number in range(rounds + 1):
        found = []
        for side, work in zip(both, (mine, yours), strict=True):
            began = time.perf_counter()
            result = work()
            took = time.perf_counter() - began
            found.append(Timed([*side.seconds, took] if number else [], result))
        both = (found[0], found[1])
    return both


def _figures(mine: Timed, yours: Timed, tokens: int) -> dict[str, Any]:
    ratios = [b / a for a, b in zip(mine.seconds, yours.seconds, strict=True)]
    return {
        "seconds": mine.seconds,
        "their_seconds": yours.seconds,
        "tokens_per_second": tokens / median(mine.seconds),
        "their_tokens_per_second": tokens / median(yours.seconds),
        "ratio": median(ratios),
        "ratios": ratios,
    }


def _page(record: dict[str, Any]) -> str:
    rows = [
        f"| {r['row']} | {r['tokens_per_second']:,.0f} | {r['their_tokens_per_second']:,.0f} | {r['ratio']:.2f} "
        f"({min(r['ratios']):.2f} to {max(r['ratios']):.2f}) | {r['demanded']} | {_agreement(r)} |"
        for r in record["rows"]
    ]
    return "\n".join(
        [
            "# Scoring and writing, against the harness's own model",
            "",
            f"{record['date']}, commit {record['commit']}, {record['cores']} cores, torch {record['torch']}, "
            f"{record['threads']} threads. {record['model']}. HFLM of lm_eval 0.4.13 with batch size "
            f"{record['hflm_batch']}, on the exported folder, in the same process, in turn; {record['rounds']} rounds "
            "after one to warm up. A ratio is their seconds over ours, the median of the rounds (and their range).",
            "",
            "| row | tokens/s | HFLM, tokens/s | ratio | demanded | answers |",
            "|---|---|---|---|---|---|",
            *rows,
            "",
            *(f"Measured at {when}: {', '.join(names)}." for when, names in _measured_earlier(record).items()),
            "",
        ]
    )


def _measured_earlier(record: dict[str, Any]) -> dict[str, list[str]]:
    """Date and commit of rows that come from earlier records, and their names."""
    found: dict[str, list[str]] = {}
    for row in record["rows"]:
        if "measured" in row:
            found.setdefault(row["measured"], []).append(row["row"])
    return found


def _agreement(row: dict[str, Any]) -> str:
    if "greedy_flags_that_differ" in row:
        within = "within" if row["largest_difference"] <= 1e-4 else "NOT within"
        return f"{within} 1e-4 + 1e-6 LL, {row['greedy_flags_that_differ']} greedy flags differ"
    return f"{row['texts_that_differ']} texts differ" if "texts_that_differ" in row else "drawn"


def _line(row: dict[str, Any]) -> str:
    apart = f", apart {row['largest_difference']:.1e}" if "largest_difference" in row else ""
    return (
        f"{row['row']}: {row['tokens_per_second']:,.0f} against {row['their_tokens_per_second']:,.0f} tokens/s, "
        f"x {row['ratio']:.2f} (demanded {row['demanded']}){apart}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
