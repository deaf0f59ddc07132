"""A server whose model is split over tensor ranks answers as one rank does, text by text."""

import json
import time
from multiprocessing import get_context

import pytest
import torch

from evaluation.models import TEXTS, TOKENIZER, plan_of
from ranks import on_ranks
from trivium.certify.layouts import ADAPTERS, DEEPSEEK, LATENT, ROTARY
from trivium.comms.mesh import Mesh
from trivium.evaluation.answer import NativeScorer
from trivium.model.rows import Rows
from trivium.model.whole import WholeModel
from trivium.plan.layout import Layout
from trivium.plan.parameters import Box, parameters, shard_box
from trivium.seeds import generator_for
from trivium.serving.config import Drawing, ServeConfig
from trivium.serving.ranks import LeadingRows, OutOfStep, follow
from trivium.serving.worker import Job, Worker
from trivium.serving.writer import Writer

LLAMA = {**ROTARY, "kv_heads": 2, "ffn": 40, "head": "untied", "adapters": ADAPTERS[:1]}
EXPERTS = {**LLAMA, "feed_forward": "experts", "experts": {"count": 4, "chosen": 2, "columns": 24}, "adapters": ()}
SHAPES = {"gpt": {}, "adapters": LLAMA, "experts": EXPERTS, "latent": {**DEEPSEEK, "latent": LATENT, "ffn": 40}}
GREEDY = Drawing(temperature=0, max_tokens=14)
DRAWN = Drawing(temperature=0.9, top_p=0.9, max_tokens=9)
# prompt, settings, texts of the request (n), alternatives, bias
REQUESTS = [
    ("Item 7 opens", GREEDY, 1, 3, {}),
    ("The", DRAWN, 3, None, {}),
    (TEXTS[0], GREEDY.model_copy(update={"stop": ("e", " ")}), 1, 0, {}),
    ("Item 7 opens", DRAWN.model_copy(update={"repetition_penalty": 1.5, "top_k": 20}), 1, 1, {}),
    ("a", GREEDY.model_copy(update={"frequency_penalty": 1.0, "presence_penalty": 0.5}), 2, None, {}),
    ("a", GREEDY.model_copy(update={"max_tokens": 5}), 1, 2, {5: 60.0, 9: 58.0, 3: -100.0}),
]


def scorer_of(shape, mesh=None):
    """Return a scorer in fp64 with random weights, of which each rank has its part."""
    plan = plan_of(sequence=96, model={**SHAPES[shape], "layers": 2})
    mesh = mesh or Mesh.single()
    model = WholeModel(plan.model, precision="fp64", mesh=mesh)
    held = {name for name, _ in model.stage.named_parameters()}
    for row in parameters(plan.model):
        values = torch.from_numpy(generator_for(3, row.name).standard_normal(row.shape) * 0.3)
        box = shard_box(row, plan.model, mesh.layout, mesh.tensor.index, 0)
        if row.name in held:
            model.load(row.name, values[box.within(Box(tuple(0 for _ in row.shape), row.shape))])
    return NativeScorer(model, TOKENIZER)


def jobs_of(writer):
    found = []
    for number, (prompt, settings, n, alternatives, bias) in enumerate(REQUESTS):
        ids = TOKENIZER.encode(prompt)[:40]
        drafts = [
            writer.draft(ids, settings, seed=10 * number + k, alternatives=alternatives, bias=bias) for k in range(n)
        ]
        if not number:  # the first one runs to its full length
            drafts[0].done = lambda ids: False
        read = [ids] if alternatives else []
        found.append(Job(drafts, lambda event: None, time.monotonic() + 600, read, alternatives or 0))
    return found


def texts_of(jobs):
    return [
        {"finish": [d.finish for d in job.drafts], "rows": [[t.row() for t in d.tokens] for d in job.drafts],
         "echoed": [[t.row() for t in read] for read in job.echoed]}
        for job in jobs
    ]  # fmt: skip


def written(scorer, others=(), *, together=8):
    """Return what a worker writes. The other requests join one by one at every second token of the first."""
    writer = Writer(scorer)
    worker = Worker(writer, ServeConfig(together=together), LeadingRows(scorer.model, others))
    jobs = jobs_of(writer)
    first, later = jobs[0].drafts[0], iter(jobs[1:])

    def on_token(token):
        if len(first.tokens) % 2 == 0 and (job := next(later, None)):
            worker.submit(job)
        return True

    first.on_token = on_token
    worker.submit(jobs[0])
    patient = time.monotonic() + 60
    while not all(job.ended for job in jobs):
        assert time.monotonic() < patient, [job.ended for job in jobs]
        time.sleep(0.005)
    worker.close()
    return texts_of(jobs)


def alone(scorer):
    """Return what is written without a server, one text at a time."""
    writer = Writer(scorer)
    jobs = jobs_of(writer)
    for job in jobs:
        for draft in job.drafts:
            writer.write_drafts([draft])
    return texts_of(jobs)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        assert one["finish"] == other["finish"]
        for here, there in zip(one["rows"], other["rows"], strict=True):
            assert [row[0] for row in here] == [row[0] for row in there]
            for row, same in zip(here, there, strict=True):
                assert row == pytest.approx(same, abs=1e-9)


def answer(place, shapes, pipes, folder):
    mesh = Mesh.connect(Layout(tensor=place.world_size), place.rank, place.world_size)
    for shape in shapes:
        scorer = scorer_of(shape, mesh)
        if place.rank:
            follow(Rows(scorer.model), pipes[place.rank - 1][0])
            continue
        found = written(scorer, [sender for _, sender in pipes])
        (folder / f"{shape}.json").write_text(json.dumps(found))


def check(ranks, shapes, folder):
    pipes = [get_context("fork").Pipe(duplex=False) for _ in range(ranks - 1)]
    on_ranks(ranks, answer, shapes, pipes, folder)
    for shape in shapes:
        scorer = scorer_of(shape)
        found, expected = json.loads((folder / f"{shape}.json").read_text()), written(scorer)
        assert_same(found, expected)
        assert_same(found, alone(scorer))
        for one, other in zip(found, expected, strict=True):
            for here, there in zip(one["echoed"], other["echoed"], strict=True):
                assert [x for row in here for x in row] == pytest.approx([x for row in there for x in row], abs=1e-9)
        assert sum(map(len, (job["echoed"] for job in found))) == 3
        texts = {json.dumps([row[0] for row in rows]) for job in found for rows in job["rows"]}
        assert len(texts) == 8  # of nine texts, two greedy ones are equal


def test_two_ranks_write_what_one_writes_and_what_is_written_alone(tmp_path):
    check(2, list(SHAPES), tmp_path)


@pytest.mark.broad
def test_four_ranks_write_what_one_writes(tmp_path):
    check(4, ["gpt", "latent"], tmp_path)


class Breaking(LeadingRows):
    def decode(self, ids):
        with self._by_all("decode", ids):
            raise RuntimeError("out of memory")


def test_worker_ends_when_ranks_no_longer_work_together():
    scorer, told, ended = scorer_of("gpt"), [], []
    reading, sending = get_context("fork").Pipe(duplex=False)
    rows = Breaking(scorer.model, [sending])
    worker = Worker(Writer(scorer), ServeConfig(), rows, on_failure=lambda: ended.append(1))
    jobs = [Job([], lambda event: told.append(event.kind), time.monotonic() + 60) for _ in range(2)]
    for job in jobs:
        job.drafts = [worker.writer.draft([5], GREEDY, seed=1)]
    assert worker.submit(jobs[0])
    worker._thread.join(60)
    assert worker.submit(jobs[1])  # and its client does not wait for ever
    assert told == ["failed", "failed"] and ended == [1]
    with pytest.raises(OutOfStep, match=r"decode failed on rank 0 of 2, .* \(out of memory\); start the server again"):
        worker.close()
    reading.close()


def test_request_that_cannot_be_sampled_leaves_the_ranks_in_step():
    """The first rank alone samples, so an error there concerns only its request."""

    class Failing(Writer):
        def choose(self, logits, drafts):
            if any(d.settings.max_tokens == 3 for d in drafts):
                raise ValueError("no token can be sampled")
            return super().choose(logits, drafts)

    scorer, told = scorer_of("gpt"), []
    reading, sending = get_context("fork").Pipe(duplex=False)
    worker = Worker(Failing(scorer), ServeConfig(), LeadingRows(scorer.model, [sending]))
    for name, tokens in (("bad", 3), ("good", 5)):
        job = Job([], lambda event, name=name: told.append((name, event.kind)), time.monotonic() + 60)
        job.drafts = [worker.writer.draft([5], GREEDY.model_copy(update={"max_tokens": tokens}), seed=1)]
        worker.submit(job)
    worker.close()
    assert ("bad", "failed") in told and ("good", "done") in told
    follower = Rows(scorer.model)
    follow(follower, reading)  # every operation is possible in the order in which it was sent
    assert follower.lengths == []
