"""Answer requests with a native checkpoint under any layout: batched log-likelihoods and generated text."""

from collections.abc import Sequence
from pathlib import Path

import torch

from trivium.checkpoint.format import published, refuse_at_url
from trivium.checkpoint.load import Checkpoint
from trivium.comms.collectives import sum_over_ranks_
from trivium.comms.launch import ALONE
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
from trivium.evaluation.branches import batches, families, read_batch
from trivium.evaluation.requests import Request, Sampling, Scored, portions
from trivium.evaluation.windows import Encoded, Window, encode_all, rolling_windows, windows_of
from trivium.kernels.dtypes import DTYPES
from trivium.model.generate import Choice, Draft, continue_drafts
from trivium.model.whole import WholeModel
from trivium.plan.parameters import shard_box
from trivium.progress import Progress, silent
from trivium.seeds import seed_for
from trivium.tokens.marks import ids_of
from trivium.tokens.tokenizer import Tokenizer, load_tokenizer

TEXTS_PER_BATCH = 8  # texts generated in one batch
MAX_TOKENIZED_CHARACTERS = 1 << 24  # length of the requests that are tokenized at one time; their ids take about 0.5 GB


class NativeScorer:
    """Scores requests with a model that may be divided over ranks.

    Every rank of the model's mesh calls the same methods with the same arguments and gets all answers. Requests are
    divided over the data ranks. A prefix that requests share is read once.
    """

    def __init__(self, model: WholeModel, tokenizer: Tokenizer, progress: Progress = silent) -> None:
        self.model, self.tokenizer, self._progress = model, tokenizer, progress

    @classmethod
    def open(cls, checkpoint: str | Path, tokenizer: str | Path, *, mesh: Mesh | None = None) -> "NativeScorer":
        """Open a checkpoint, or the newest one in a run's `checkpoints` folder, with a tokenizer.json.

        mesh: the ranks that answer together, in any layout; None means this process alone. Raises CheckpointError if
        the checkpoint is missing or damaged or was trained with another tokenizer, and ConfigError for an impossible
        layout.
        """
        mesh = mesh or Mesh.single(ALONE.device)
        opened = Checkpoint.open_together(checkpoint_in(Path(checkpoint)), mesh)
        plan = opened.plan
        words = load_tokenizer(tokenizer)
        opened.refuse_other_tokenizer(tokenizer, words.sha256, words.vocabulary)
        model = WholeModel(plan.model.in_use, precision=plan.precision.weights, mesh=mesh)
        for name, row in model.stage.table.items():  # this rank's shards, whatever layout saved them
            box = shard_box(row, plan.model, mesh.layout, mesh.tensor.index, mesh.expert.index)
            model.load(name, opened.read(f"weights/{name}", box, DTYPES[plan.precision.weights]))
        marks = opened.manifest.get("imported_from", {}).get("marks") or {}
        return cls(model, words.with_ends(ids_of(marks.get("eos_token_id"))))

    @property
    def sequence(self) -> int:
        return self.model.model.sequence

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        """Return the log-likelihood in nats of each continuation given its context."""
        found = []
        for some in portions(requests, MAX_TOKENIZED_CHARACTERS):
            encoded = encode_all(some, self.tokenizer)
            for e, (likelihood, greedy) in zip(encoded, self.loglikelihood_of_ids(encoded), strict=True):
                truncated = len(e.context) + len(e.continuation) > self.sequence + 1
                found.append(Scored(likelihood, len(e.continuation), greedy, truncated))
        return found

    def loglikelihood_of_ids(self, requests: Sequence[Encoded]) -> list[tuple[float, bool]]:
        """Return for each request of token ids its log-likelihood in nats, and whether every token was the argmax."""
        return self._sums([windows_of(e, self.sequence) for e in requests])

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """Return the log-likelihood in nats of each full text. Each token is given as many preceding tokens as fit."""
        ids, before = self.tokenizer.encode_prompts(texts), self.tokenizer.before_text
        windows = [rolling_windows(i, before=before, sequence=self.sequence) for i in ids]
        return [likelihood for likelihood, _ in self._sums(windows)]

    def generate(self, prompts: Sequence[str], *, settings: Sampling) -> list[str]:
        ids = self.tokenizer.prompt_ids(prompts)
        drafts = []
        for number, prompt in enumerate(ids):
            seed = seed_for(settings.seed, "prompt", number)
            choice = Choice(settings.temperature, settings.top_k, settings.top_p, seed)
            drafts.append(self.draft(prompt, choice, stop=settings.stop, max_tokens=settings.max_tokens))
        texts = [
            self.tokenizer.decode_after(prompt, [t for t in written if t not in self.tokenizer.ends])
            for prompt, written in zip(ids, self.continue_drafts(drafts), strict=True)
        ]
        return [cut_at(settings.stop, text) for text in texts]

    def continue_drafts(self, drafts: Sequence[Draft]) -> list[list[int]]:
        """Return the tokens sampled for each draft. Drafts of similar length are generated in one batch."""
        order = sorted(range(len(drafts)), key=lambda n: -len(drafts[n].prompt))
        groups = [order[n : n + TEXTS_PER_BATCH] for n in range(0, len(order), TEXTS_PER_BATCH)]
        data = self.model.mesh.data
        for group in groups[data.index :: data.size]:
            continue_drafts(self.model, [drafts[n] for n in group])
        longest = max((d.max_tokens for d in drafts), default=0)
        drawn = torch.zeros(len(drafts), longest + 1, dtype=torch.int64)
        if self._contributes:
            for number, draft in enumerate(drafts):
                drawn[number, : 1 + len(draft.drawn)] = torch.tensor([len(draft.drawn), *draft.drawn])
        shared = sum_over_ranks_(drawn.to(self.model.device), self.model.mesh).tolist()
        return [row[1 : 1 + row[0]] for row in shared]

    @property
    def _contributes(self) -> bool:
        """Whether this rank contributes its data rank's results: tensor rank 0 of the last pipeline stage."""
        return self.model.predicts and self.model.mesh.tensor.index == 0

    def _sums(self, windows: Sequence[Sequence[Window]]) -> list[tuple[float, bool]]:
        flat = [w for several in windows for w in several]
        made = batches(families(flat))
        totals = torch.zeros(2, len(flat), dtype=torch.float64)
        data = self.model.mesh.data
        mine = made[data.index :: data.size]
        for number, batch in enumerate(mine):
            read_batch(self.model, batch, totals)
            self._progress(number + 1, len(mine), "batches")
        self.model.finish()
        found = totals if self._contributes else torch.zeros_like(totals)
        likelihoods, missed = sum_over_ranks_(found.to(self.model.device), self.model.mesh).tolist()
        sums, begin = [], 0
        for several in windows:
            end = begin + len(several)
            sums.append((sum(likelihoods[begin:end]), not any(missed[begin:end])))
            begin = end
        return sums

    def draft(self, prompt: list[int], choice: Choice, *, stop: Sequence[str], max_tokens: int) -> Draft:
        """Create a draft that ends with the document or with one of the texts in `stop`."""

        def done(drawn: list[int]) -> bool:
            is_over = bool(drawn) and drawn[-1] in self.tokenizer.ends
            return is_over or any(s in self.tokenizer.decode(drawn) for s in stop)

        return Draft(prompt, choice, done, max_tokens)


def cut_at(stops: Sequence[str], text: str) -> str:
    """Return the text before the earliest occurrence of any stop text."""
    cuts = [text.index(s) for s in stops if s in text]
    return text[: min(cuts)] if cuts else text


def checkpoint_in(place: Path) -> Path:
    """Return `place` if it is a checkpoint, otherwise the newest checkpoint in it. Raises CheckpointError."""
    if (place / "manifest.json").is_file():
        return place
    refuse_at_url(place.parent.parent)
    found = published(place)
    if not found:
        raise CheckpointError(f"{place} holds no checkpoint; train first, or name a step's directory")
    return found[-1]
