"""Does warming up on documents that GOT-D selects help the tuning that follows? And how long does selection take?

    TRIVIUM_DATA=DIR python benchmarks/got_d.py --json out.json [--seeds 5] [--report benchmarks/reports]
    TRIVIUM_DATA=DIR python benchmarks/got_d.py --json out.json --speed 30000 100000 300000 1000000

For each seed a small model is trained on a mix of prose, encyclopaedia and drama. From other documents in the same mix
each method selects as many tokens for a warm-up, after which the model is tuned on a target with more drama. All
documents have 60 words, so that no method selects by length. Weights, order of batches and evaluation are the same
for all methods of a seed, and differences are paired by seed. Learning rates were set on seed 100 by the loss after
tuning without a warm-up, and the regularisation by the topics that it selects there; no methods were compared.
"""

import argparse
import gzip
import json
import lzma
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from circumstances import circumstances
from scipy.stats import t as student

from trivium.comms.mesh import Mesh
from trivium.config import build
from trivium.corpus.config import SelectionConfig
from trivium.corpus.select.points import Embed, Part, Points, distances, encoded_by, hashed_words, vectors_in, whole
from trivium.corpus.select.select import rank
from trivium.evaluation.embedding import mean_hidden_states
from trivium.model.whole import WholeModel
from trivium.plan.plan import Plan
from trivium.provenance import write_json
from trivium.seeds import generator_for
from trivium.tokens.tokenizer import Tokenizer, train_tokenizer
from trivium.training.batches import windows
from trivium.training.config import TrainingConfig
from trivium.training.trainer import Samples, Trainer, adam_rule

TOPICS = ("prose", "encyclopaedia", "drama")
TRAINED_ON, TARGET = (0.70, 0.25, 0.05), (0.40, 0.30, 0.30)  # shares of the topics
DOCUMENTS = {"trained on": 4000, "candidates": 3000, "tuning": 200, "tested": 200, "tested on the mix": 200}
WORDS = 60  # of a document
VOCABULARY, SEQUENCE = 1024, 128
MODEL = {"layers": 2, "hidden": 64, "heads": 4, "sequence": SEQUENCE, "vocabulary": VOCABULARY}
SEQUENCES = 8  # of a batch
EPOCHS, TUNING_EPOCHS = 3, 2
HIGHEST_LR, WARM_UP_LR, TUNING_LR = 3e-3, 2e-4, 2e-4  # the last two fall linearly to 0
BUDGETS = (8_192, 32_768)  # tokens of a warm-up
EPSILONS = (0.03, 0.1, 0.3, 1.0, 3.0, 100.0)
BASELINES = ("none", "random", "nearest", "dsir")
METHODS = (*BASELINES, "got-d, words", "got-d, model")
NAMES = {
    "none": "no warm-up",
    "random": "random",
    "nearest": "nearest to the target",
    "dsir": "DSIR",
    "got-d, words": "GOT-D, hashed words",
    "got-d, model": "GOT-D, the model's hidden states",
}
MEASURES = ("target, warm", "target, tuned", "mix, warm", "mix, tuned")
SPEED_TARGETS, SPEED_WORDS, SPEED_DIMENSIONS = 1000, 25, 256


Ids = Mapping[str, np.ndarray]  # token ids by role


class Setting(NamedTuple):
    """The documents of one seed by role, the topic of each, and the tokenizer of what is trained on."""

    texts: Mapping[str, list[str]]
    topics: Mapping[str, np.ndarray]
    tokenizer: Tokenizer


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    data = Path(os.environ["TRIVIUM_DATA"])
    record = circumstances("benchmarks/got_d.py", sys.argv[1:] if arguments is None else arguments)
    record["load"] = os.getloadavg()[0]
    torch.set_num_threads(1)
    if options.speed:
        record["speed"] = [row for size in options.speed for row in speed(data, size)]
        write_json(Path(options.json), record)
        return 0
    documents = {topic: list(_chunks(topic, data)) for topic in TOPICS}
    record["seeds"] = [seed for file in options.with_seeds_of for seed in _seeds_of(json.loads(Path(file).read_text()))]
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        begin = time.process_time()
        record["seeds"].append(experiment(setting(documents, seed), seed))
        print(f"seed {seed}: {time.process_time() - begin:.0f} CPU s", flush=True)
        write_json(Path(options.json), record)
    record["seeds"] = _seeds_of(record)
    for earlier in options.with_speed_of:
        record["speed"] = json.loads(Path(earlier).read_text())
    if options.report:
        from got_d_page import page

        name = f"got-d-{record['date'][:10]}"
        write_json(Path(options.report) / f"{name}.json", record)
        (Path(options.report) / f"{name}.md").write_text(page(record))
    return 0


def _seeds_of(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the seeds of a record, each with the commit and the load of its run."""
    return [{**{key: record[key] for key in ("date", "commit", "changed", "load")}, **seed} for seed in record["seeds"]]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, help="file for the figures")
    parser.add_argument("--report", help="folder for a dated report")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--with-seeds-of", nargs="*", default=[], help="records of other seeds, which are added")
    parser.add_argument("--speed", type=int, nargs="+", help="numbers of candidates; measures the selection alone")
    parser.add_argument("--with-speed-of", nargs="*", default=[], help="a record of --speed for the report")
    return parser.parse_args(arguments)


def _chunks(topic: str, data: Path) -> Iterator[str]:
    """Yield documents of WORDS words of a topic: the beginning of each passage of the encyclopaedia, and all of books
    and plays."""
    if topic == "encyclopaedia":
        files = (data / "tasks" / "boolq" / name for name in ("validation.jsonl", "train_pool_500.jsonl"))
        lines = [line for file in files for line in file.read_text("utf-8").splitlines()]
        for passage in dict.fromkeys(json.loads(line)["passage"] for line in lines):
            yield from islice(_cut(passage, WORDS), 1)
    else:
        name = {"prose": "books_train.jsonl.gz", "drama": "tinyshakespeare.jsonl.gz"}[topic]
        with gzip.open(data / "corpora" / name, "rt", encoding="utf-8") as lines_of_file:
            for line in lines_of_file:
                yield from _cut(json.loads(line)["text"], WORDS)


def _cut(text: str, size: int) -> Iterator[str]:
    words = text.split()
    return (" ".join(words[start : start + size]) for start in range(0, len(words) - size + 1, size))


def setting(documents: Mapping[str, Sequence[str]], seed: int) -> Setting:
    """Draw disjoint documents for every role."""
    left = {t: iter(generator_for(seed, "documents", t).permutation(len(documents[t]))) for t in TOPICS}
    texts: dict[str, list[str]] = {}
    topics: dict[str, np.ndarray] = {}
    for role, size in DOCUMENTS.items():
        shares = TARGET if role in ("tuning", "tested") else TRAINED_ON
        drawn = np.repeat(np.arange(len(TOPICS)), [round(share * size) for share in shares])
        drawn = generator_for(seed, "order", role).permutation(drawn)
        topics[role], texts[role] = drawn, [documents[TOPICS[n]][next(left[TOPICS[n]])] for n in drawn]
    return Setting(texts, topics, train_tokenizer(texts["trained on"], VOCABULARY))


def experiment(given: Setting, seed: int) -> dict[str, Any]:
    """Return losses and selections of all methods and budgets for one seed."""
    ids = {role: _ids(given, texts) for role, texts in given.texts.items()}
    plan = Plan.model_validate({"model": MODEL, "batch": {"sequences": SEQUENCES, "micro": SEQUENCES}}).checked()
    trainer = _trainer(plan, seed)
    steps = EPOCHS * (len(ids["trained on"]) - 1) // (SEQUENCES * SEQUENCE)
    for step in range(steps):
        rate = HIGHEST_LR * min(1.0, (step + 1) / 50) * (0.55 + 0.45 * np.cos(np.pi * step / steps))
        loss = trainer.train_step(step, Samples.of_ids(ids["trained on"], plan, step), rate).loss
        if step % 100 == 0:
            print(f"seed {seed}, step {step} of {steps}: {loss:.4f}", flush=True)
    trained = [bucket.weights.clone() for bucket in trainer.buckets]
    model = WholeModel.sharing(trainer.stages, plan, Mesh.single())
    ranked = rankings(given, model, seed)
    found: dict[str, Any] = {"seed": seed, "steps": steps, "trained": _losses(trainer, ids), "methods": {}}
    for method in METHODS:
        for budget in BUDGETS if method != "none" else (0,):
            chosen = _up_to(ranked.get(method, ()), given, budget)
            shares = np.bincount(given.topics["candidates"][chosen], minlength=len(TOPICS)) / max(len(chosen), 1)
            row = {"documents": len(chosen), "shares": shares.round(4).tolist()}
            warm_up = _ids(given, [given.texts["candidates"][n] for n in sorted(chosen)])  # drawn in random order
            found["methods"][f"{method}/{budget}"] = row | _tuned(plan, trained, warm_up, budget, ids, seed)
    methods = {m: set(_up_to(r, given, BUDGETS[-1])) for m, r in ranked.items()}
    found["overlap"] = {f"{a}/{b}": len(methods[a] & methods[b]) / len(methods[a] | methods[b])
                        for a, b in combinations(methods, 2)}  # fmt: skip
    found["epsilons"] = shares_by_epsilon(given, seed)
    return found


def _trainer(plan: Plan, seed: int) -> Trainer:
    return Trainer(plan, Mesh.single(), seed=seed, rule=adam_rule(build(TrainingConfig, {})))


def _ids(given: Setting, texts: Sequence[str]) -> np.ndarray:
    """Return the ids of documents one after the other, each with an end."""
    encoded = given.tokenizer.encode_batch(list(texts))
    return np.array([i for ids in encoded for i in (*ids, given.tokenizer.end_of_text)], np.int64)


def _losses(trainer: Trainer, ids: Ids) -> dict[str, float]:
    """Return the loss in nats per token on the target's test documents, and on those of the mix."""
    found = {}
    for name, role in (("target", "tested"), ("mix", "tested on the mix")):
        whole_windows = (len(ids[role]) - 1) // SEQUENCE
        read = partial(windows, ids[role], trainer.plan.model)
        found[name] = trainer.validate(Samples(0, whole_windows, read))["loss"]
    return found


def _up_to(ranked: Sequence[int], given: Setting, budget: int) -> list[int]:
    """Return the first candidates that have as many tokens as a warm-up takes."""
    chosen: list[int] = []
    tokens = 0
    for number in ranked:
        if tokens > budget:
            break
        chosen.append(number)
        tokens += len(given.tokenizer.encode(given.texts["candidates"][number])) + 1
    return chosen if budget else []


def _tuned(
    plan: Plan, trained: Sequence[torch.Tensor], warm_up: np.ndarray, budget: int, ids: Ids, seed: int
) -> dict[str, float]:
    """Warm up and tune a copy of the trained model. Return its losses after each."""
    trainer = _trainer(plan, seed)
    for bucket, weights in zip(trainer.buckets, trained, strict=True):
        bucket.weights.copy_(weights)
    trainer.optimizer.restart_masters()
    tokens = SEQUENCES * SEQUENCE
    _train(trainer, warm_up, budget // tokens, WARM_UP_LR)
    warm = _losses(trainer, ids)
    _train(trainer, ids["tuning"], TUNING_EPOCHS * (len(ids["tuning"]) - 1) // tokens, TUNING_LR)
    tuned = _losses(trainer, ids)
    return {f"{name}, {when}": at[name] for when, at in (("warm", warm), ("tuned", tuned)) for name in at}


def _train(trainer: Trainer, ids: np.ndarray, steps: int, highest: float) -> None:
    for step in range(steps):
        trainer.train_step(step, Samples.of_ids(ids, trainer.plan, step), highest * (1 - step / steps))


def _parts(given: Setting) -> tuple[list[str], Part, Part, Part]:
    ids = [str(n) for n in range(len(given.texts["candidates"]))]
    return ids, *(whole(given.texts[role]) for role in ("candidates", "tuning", "trained on"))


def rankings(given: Setting, model: WholeModel, seed: int) -> dict[str, list[int]]:
    """Return the candidates by each method, best first. What the model was trained on is the source of GOT-D."""
    names, candidates, target, source = _parts(given)

    def encode(texts: Sequence[str]) -> np.ndarray:
        return mean_hidden_states(model, [ids[:SEQUENCE] for ids in given.tokenizer.encode_batch(texts)])

    embeds: dict[str, Embed] = {"words": hashed_words(14), "model": encoded_by(encode)}
    config = SelectionConfig()
    found = {"random": [int(n) for n in generator_for(seed, "random selection").permutation(len(names))]}
    points = embeds["words"]([candidates, target])
    nearest = np.concatenate([some.min(axis=1) for _, some in distances(*points, 4096)])
    found["nearest"] = [int(n) for n in np.argsort(nearest, kind="stable")]
    resampling = config.model_copy(update={"method": "importance"})
    found["dsir"] = rank(names, candidates, target, resampling, seed=seed)[0]
    for name, embed in embeds.items():
        found[f"got-d, {name}"] = rank(names, candidates, target, config, seed=seed, source=source, embed=embed)[0]
    return found


def shares_by_epsilon(given: Setting, seed: int) -> dict[str, list[float]]:
    """Return the shares of the topics that GOT-D selects by hashed words with several regularisations."""
    ids, candidates, target, source = _parts(given)
    found = {}
    for epsilon in EPSILONS:
        config = SelectionConfig(epsilon=epsilon)
        ranked = rank(ids, candidates, target, config, seed=seed, source=source)[0]
        topics = given.topics["candidates"][_up_to(ranked, given, BUDGETS[-1])]
        found[str(epsilon)] = (np.bincount(topics, minlength=len(TOPICS)) / len(topics)).round(4).tolist()
    return found


def paired(differences: Sequence[float]) -> tuple[float, float]:
    """Return the mean of differences between two methods on the same seeds, and half its 95 % interval (Student)."""
    values = np.array(differences)
    half = student.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(half)


def speed(data: Path, candidates: int) -> Iterator[dict[str, Any]]:
    """Yield CPU seconds and peak memory of a selection from short texts, and from vectors of a file."""
    texts = list(islice(_short_texts(data), candidates + SPEED_TARGETS))
    pool, target = whole(texts[SPEED_TARGETS:]), whole(texts[:SPEED_TARGETS])
    assert pool.size == candidates, f"the books have only {pool.size:,} documents of {SPEED_WORDS} words"
    yield _timed("hashed words", pool, target, hashed_words(14))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vectors.npy"
        vectors = np.lib.format.open_memmap(path, "w+", np.float32, (len(texts), SPEED_DIMENSIONS))
        for first in range(0, len(texts), 1 << 14):
            some = vectors[first : first + (1 << 14)]
            some[:] = generator_for(1, "vectors", first).standard_normal(some.shape, dtype=np.float32)
        del vectors
        yield _timed(f"vectors of {SPEED_DIMENSIONS} numbers", pool, target, vectors_in(path))


def _short_texts(data: Path) -> Iterator[str]:
    with lzma.open(data / "corpora" / "books_large.jsonl.xz", "rt", encoding="utf-8") as lines:
        for line in lines:
            yield from _cut(json.loads(line)["text"], SPEED_WORDS)


def _timed(name: str, pool: Part, target: Part, embed: Embed) -> dict[str, Any]:
    """Measure a selection in a process of its own, so that its peak of memory is not that of an earlier one."""
    results: Any = multiprocessing.get_context("fork").SimpleQueue()
    process = multiprocessing.get_context("fork").Process(target=_measure, args=(pool, target, embed, results))
    process.start()
    row = {"embedding": name, "candidates": pool.size, "targets": target.size, **results.get()}
    process.join()
    print(row, flush=True)
    return row


def _measure(pool: Part, target: Part, embed: Embed, results: Any) -> None:
    marks = [time.process_time()]

    def embed_timed(parts: Sequence[Part]) -> list[Points]:
        points = embed(parts)
        marks.append(time.process_time())
        return points

    rank([str(n) for n in range(pool.size)], pool, target, SelectionConfig(), seed=1, embed=embed_timed)
    marks.append(time.process_time())
    results.put(
        {
            "embedding_cpu_seconds": marks[1] - marks[0],
            "transport_cpu_seconds": marks[2] - marks[1],
            "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
            "load": os.getloadavg()[0],
        }
    )


if __name__ == "__main__":
    sys.exit(main())
