"""Answer requests with a native checkpoint: log-likelihoods in bulk, and generated text.

Legend: S positions, B sequences, V vocabulary.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from trivium.checkpoint.load import Checkpoint, published
from trivium.config import build
from trivium.errors import CheckpointError
from trivium.evaluation.requests import Request, Sampling, Scored
from trivium.model.generate import Choice, continue_text
from trivium.model.whole import WholeModel
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.seeds import seed_for
from trivium.tokens.tokenizer import Tokenizer, load_tokenizer

BATCH_TOKENS = 8192


class _Row(NamedTuple):
    """A request as token ids: the window the model reads, and how many of its last ids are the answer."""

    number: int
    ids: list[int]
    answer: int
    truncated: bool


class NativeScorer:
    """Scores with one process; requests of similar length share a batch."""

    def __init__(self, model: WholeModel, tokenizer: Tokenizer) -> None:
        self.model, self.tokenizer = model, tokenizer

    @classmethod
    def open(cls, checkpoint: Path, tokenizer: Path) -> "NativeScorer":
        """From a checkpoint directory, or a run's `checkpoints` folder (its newest), and tokenizer.json.

        Raises CheckpointError when the checkpoint is missing or damaged, or its vocabulary is not the
        tokenizer's.
        """
        if (checkpoint / "manifest.json").is_file():
            opened = Checkpoint.open(checkpoint)
        else:
            found = published(checkpoint)
            if not found:
                raise CheckpointError(
                    f"{checkpoint} holds no checkpoint; train first, or name a step's directory"
                )
            opened = Checkpoint.open(found[-1])
        opened.verify()
        plan = build(Plan, opened.manifest["plan"])
        words = load_tokenizer(tokenizer)
        if words.vocabulary > plan.model.vocabulary:
            raise CheckpointError(
                f"{tokenizer} has {words.vocabulary} ids, but the model of {opened.directory} predicts "
                f"{plan.model.vocabulary}; use the tokenizer the model was trained with"
            )
        return cls(_load(opened, plan), words)

    def loglikelihood(self, requests: Sequence[Request], progress: Progress = silent) -> list[Scored]:
        """The log-likelihood of each continuation given its context, in nats."""
        rows = [self._row(n, r) for n, r in enumerate(requests)]
        results: dict[int, Scored] = {}
        batch: list[_Row] = []
        # Longest first: the first batch needs the most memory, so if it fits, all fit.
        for row in sorted(rows, key=lambda r: -len(r.ids)):
            if batch and (len(batch) + 1) * len(batch[0].ids) > BATCH_TOKENS:
                results |= self._score(batch, requests)
                progress(len(results), len(requests), "requests")
                batch = []
            batch.append(row)
        if batch:
            results |= self._score(batch, requests)
        return [results[n] for n in range(len(requests))]

    def generate(self, prompts: Sequence[str], *, settings: Sampling) -> list[str]:
        """What the model writes after each prompt."""
        return [self._write(number, prompt, settings) for number, prompt in enumerate(prompts)]

    def _row(self, number: int, request: Request) -> _Row:
        # An empty context is the beginning of a document.
        context = self.tokenizer.encode(request.context) or [self.tokenizer.end_of_text]
        answer = self.tokenizer.encode(request.continuation)
        window = [*context, *answer][-(self.model.model.sequence + 1) :]
        cut = len(window) < len(context) + len(answer)
        return _Row(number, window, min(len(answer), len(window) - 1), cut)

    def _score(self, batch: list[_Row], requests: Sequence[Request]) -> dict[int, Scored]:
        logits = self.model.logits([row.ids[:-1] for row in batch])  # B S V
        found = {}
        for row, scores in zip(batch, logits, strict=True):
            last = len(row.ids) - 1
            answer = torch.tensor(row.ids[last + 1 - row.answer :], device=scores.device)
            predicted = scores[last - row.answer : last].float().log_softmax(-1)  # answer V
            likelihood = predicted.gather(-1, answer.unsqueeze(-1)).sum().item() if row.answer else 0.0
            found[row.number] = Scored(
                loglikelihood=likelihood,
                tokens=row.answer,
                characters=len(requests[row.number].continuation),
                greedy=bool((predicted.argmax(-1) == answer).all()),
                truncated=row.truncated,
            )
        return found

    def _write(self, number: int, prompt: str, settings: Sampling) -> str:
        end = self.tokenizer.end_of_text
        ids = self.tokenizer.encode(prompt) or [end]
        seed = seed_for(settings.seed, "prompt", number)
        choice = Choice(settings.temperature, settings.top_k, settings.top_p, seed)

        def done(drawn: list[int]) -> bool:
            if drawn and drawn[-1] == end:
                return True
            return any(s in self.tokenizer.decode(drawn) for s in settings.stop) if settings.stop else False

        drawn = continue_text(self.model, ids, max_tokens=settings.max_tokens, choice=choice, done=done)
        text = self.tokenizer.decode([t for t in drawn if t != end])
        cuts = [text.index(s) for s in settings.stop if s in text]
        return text[: min(cuts)] if cuts else text


def _load(checkpoint: Checkpoint, plan: Plan) -> WholeModel:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = WholeModel(plan.model, precision=plan.precision.weights, device=device)
    for parameter in parameters(plan.model):
        box = Box(tuple(0 for _ in parameter.shape), parameter.shape)
        model.load(parameter.name, checkpoint.read(f"weights/{parameter.name}", box, torch.float32))
    return model
