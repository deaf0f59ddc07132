"""Answer requests with a native checkpoint, under any layout: log-likelihoods in bulk, and generated text."""

from collections.abc import Sequence
from pathlib import Path

import torch

from trivium.checkpoint.format import published
from trivium.checkpoint.load import Checkpoint
from trivium.comms.collectives import sum_over_ranks_
from trivium.comms.launch import ALONE
from trivium.comms.mesh import Mesh
from trivium.errors import CheckpointError
from trivium.evaluation.branches import batches, families
from trivium.evaluation.reading import Totals, read_batch
from trivium.evaluation.requests import Request, Sampling, Scored, portions
from trivium.evaluation.windows import Encoded, Window, encode_all, rolling_windows, windows_of
from trivium.kernels.dtypes import DTYPES
from trivium.model.generate import Choice, Draft, continue_drafts
from trivium.model.whole import WholeModel
from trivium.plan.parameters import shard_box
from trivium.plan.plan import Plan
from trivium.progress import Progress, silent
from trivium.seeds import seed_for
from trivium.tokens.tokenizer import Tokenizer, load_tokenizer

TOGETHER = 8  # texts written side by side
CHARACTERS_AT_ONCE = 1 << 24  # of requests that are ids at the same time: these take half a gigabyte


class NativeScorer:
    """Every rank of the model's mesh calls the same methods with the same arguments and gets every answer.

    Requests are divided over the data ranks; what requests have in common is read once.
    """

    def __init__(self, model: WholeModel, tokenizer: Tokenizer, progress: Progress = silent) -> None:
        """progress: hears how far each call is."""
        self.model, self.tokenizer, self._progress = model, tokenizer, progress

    @classmethod
    def open(
        cls, checkpoint: str | Path, tokenizer: str | Path, *, mesh: Mesh | None = None
    ) -> "NativeScorer":
        """From a checkpoint directory, or a run's `checkpoints` folder (its newest), and tokenizer.json.

        mesh: the ranks that answer together (pipeline, data, tensor), whatever layout it was trained in; None for
        this process alone. Raises CheckpointError when the checkpoint is missing or damaged, or its vocabulary is
        not the tokenizer's, ConfigError when the model does not fit the layout.
        """
        mesh = mesh or Mesh.single(ALONE.device)
        opened = Checkpoint.open_together(checkpoint_in(Path(checkpoint)), mesh)
        plan = opened.plan
        words = load_tokenizer(tokenizer)
        known = opened.manifest.get("data", {}).get("tokenizer_sha256")
        if words.vocabulary > plan.model.vocabulary:
            raise CheckpointError(
                f"{tokenizer} has {words.vocabulary} ids, but the model of {opened.directory} predicts "
                f"{plan.model.vocabulary}; use the tokenizer the model was trained with"
            )
        if known and known != words.sha256:
            raise CheckpointError(
                f"{tokenizer} has sha256 {words.sha256[:12]}…, but {opened.directory} was trained with "
                f"{known[:12]}…: its ids mean other words; use the tokenizer the model was trained with"
            )
        return cls(_load(opened, plan, mesh), words)

    @property
    def sequence(self) -> int:
        """Tokens the model can read at once."""
        return self.model.model.sequence

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        """The log-likelihood of each continuation given its context, in nats."""
        return [
            answer for some in portions(requests, CHARACTERS_AT_ONCE) for answer in self._loglikelihood(some)
        ]

    def _loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        encoded = encode_all(requests, self.tokenizer)
        found = self.loglikelihood_of_ids(encoded)
        return [
            Scored(
                loglikelihood=likelihood,
                tokens=len(e.continuation),
                greedy=greedy,
                truncated=len(e.context) + len(e.continuation) > self.sequence + 1,
            )
            for e, (likelihood, greedy) in zip(encoded, found, strict=True)
        ]

    def loglikelihood_of_ids(self, requests: Sequence[Encoded]) -> list[tuple[float, bool]]:
        """The same of token ids: nats, and whether each token of the continuation was the likeliest."""
        return self._sums([windows_of(e, self.sequence) for e in requests])

    def loglikelihood_rolling(self, texts: Sequence[str]) -> list[float]:
        """The log-likelihood of whole texts, in nats: of every token, given as many before it as fit."""
        ids, before = self.tokenizer.encode_prompts(texts), self.tokenizer.before_text
        windows = [rolling_windows(i, before=before, sequence=self.sequence) for i in ids]
        return [likelihood for likelihood, _ in self._sums(windows)]

    def generate(self, prompts: Sequence[str], *, settings: Sampling) -> list[str]:
        """What the model writes after each prompt."""
        end = self.tokenizer.end_of_text
        ids = self.tokenizer.prompt_ids(prompts)
        drafts = [self._draft(number, prompt, settings) for number, prompt in enumerate(ids)]
        drawn = self.continue_drafts(drafts)
        texts = [
            self.tokenizer.decode_after(prompt, [t for t in written if t != end])
            for prompt, written in zip(ids, drawn, strict=True)
        ]
        return [cut_at(settings.stop, text) for text in texts]

    def continue_drafts(self, drafts: Sequence[Draft]) -> list[list[int]]:
        """The tokens drawn for each draft; those of similar length are written side by side."""
        order = sorted(range(len(drafts)), key=lambda n: -len(drafts[n].prompt))
        groups = [order[n : n + TOGETHER] for n in range(0, len(order), TOGETHER)]
        data = self.model.mesh.data
        for group in groups[data.index :: data.size]:
            continue_drafts(self.model, [drafts[n] for n in group])
        longest = max((d.max_tokens for d in drafts), default=0)
        drawn = torch.zeros(len(drafts), longest + 1, dtype=torch.int64)
        if self._speaks:
            for number, draft in enumerate(drafts):
                drawn[number, : 1 + len(draft.drawn)] = torch.tensor([len(draft.drawn), *draft.drawn])
        shared = sum_over_ranks_(drawn.to(self.model.device), self.model.mesh).tolist()
        return [row[1 : 1 + row[0]] for row in shared]

    @property
    def _speaks(self) -> bool:
        """Whether this rank is the one of its data rank that tells what was found."""
        return self.model.predicts and self.model.mesh.tensor.index == 0

    def _sums(self, windows: Sequence[Sequence[Window]]) -> list[tuple[float, bool]]:
        flat = [w for several in windows for w in several]
        made = batches(families(flat))
        totals = Totals(len(flat))
        data = self.model.mesh.data
        mine = made[data.index :: data.size]
        for number, batch in enumerate(mine):
            read_batch(self.model, batch, totals)
            self._progress(number + 1, len(mine), "batches")
        self.model.finish()
        found = totals.found if self._speaks else torch.zeros_like(totals.found)
        likelihoods, missed = sum_over_ranks_(found.to(self.model.device), self.model.mesh).tolist()
        sums, begin = [], 0
        for several in windows:
            end = begin + len(several)
            sums.append((sum(likelihoods[begin:end]), not any(missed[begin:end])))
            begin = end
        return sums

    def _draft(self, number: int, prompt: list[int], settings: Sampling) -> Draft:
        seed = seed_for(settings.seed, "prompt", number)
        choice = Choice(settings.temperature, settings.top_k, settings.top_p, seed)
        return self.draft(prompt, choice, stop=settings.stop, max_tokens=settings.max_tokens)

    def draft(self, prompt: list[int], choice: Choice, *, stop: Sequence[str], max_tokens: int) -> Draft:
        """A prompt to be continued until the end of the document or one of the texts in `stop`."""
        end = self.tokenizer.end_of_text

        def done(drawn: list[int]) -> bool:
            if drawn and drawn[-1] == end:
                return True
            return bool(stop) and any(s in self.tokenizer.decode(drawn) for s in stop)

        return Draft(prompt, choice, done, max_tokens)


def cut_at(stops: Sequence[str], text: str) -> str:
    """The text before the first of the stops."""
    cuts = [text.index(s) for s in stops if s in text]
    return text[: min(cuts)] if cuts else text


def checkpoint_in(place: Path) -> Path:
    """The directory itself when it is a checkpoint, otherwise the newest in it; CheckpointError for none."""
    if (place / "manifest.json").is_file():
        return place
    found = published(place)
    if not found:
        raise CheckpointError(f"{place} holds no checkpoint; train first, or name a step's directory")
    return found[-1]


def _load(checkpoint: Checkpoint, plan: Plan, mesh: Mesh) -> WholeModel:
    """The weights this rank holds, each read once from wherever it lies."""
    model = WholeModel(plan.model, precision=plan.precision.weights, mesh=mesh)
    dtype = DTYPES[plan.precision.weights]
    for name, row in model.stage.table.items():
        box = shard_box(row, plan.model, mesh.layout, mesh.tensor.index)
        model.load(name, checkpoint.read(f"weights/{name}", box, dtype))
    return model
