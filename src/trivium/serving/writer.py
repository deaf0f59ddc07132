"""Generate texts in batches. Random draws are keyed by text and position, so that no layout or batch changes a text.

Legend: B texts in a batch, V entries of the vocabulary, K alternatives per token.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Literal, NamedTuple

import torch

from trivium.comms.collectives import sum_over_ranks_
from trivium.evaluation.answer import NativeScorer, cut_at
from trivium.evaluation.requests import Request, Sampling, Scored
from trivium.model.generate import Choice, finite, penalised, pick, write_together
from trivium.model.rows import Rows
from trivium.seeds import generator_for, seed_for
from trivium.serving.config import Drawing
from trivium.serving.detokenize import CONTEXT_TOKENS, Detokenizer
from trivium.tokens.tokenizer import Tokenizer

Tensor = torch.Tensor
Finish = Literal["stop", "length", "cancelled"]
FINISHES: tuple[Finish, ...] = ("stop", "length", "cancelled")


class Token(NamedTuple):
    """A token, its log-probability in nats and its most likely alternatives with theirs, if requested."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()

    def row(self) -> list[float]:
        """Return the token as numbers, as `logprob_rows` does."""
        return [self.id] if self.logprob is None else [self.id, self.logprob, *chain(*self.top)]

    @classmethod
    def of_row(cls, row: Sequence[float], alternatives: int | None) -> "Token":
        """Create a token from a row, which may have more than the requested alternatives."""
        if alternatives is None:
            return cls(int(row[0]))
        pairs = islice(zip(row[2::2], row[3::2], strict=True), alternatives)
        return cls(int(row[0]), row[1], tuple((int(i), logprob) for i, logprob in pairs))


class Written(NamedTuple):
    """A generated text, its tokens, and why it ended."""

    text: str
    tokens: list[Token]
    finish: Finish


@dataclass
class Draft:
    """A text being generated.

    seed: key of the random draws, together with the position. done: receives all sampled ids and returns whether
    the text ends. alternatives: number of alternatives per token; None for no log-probabilities. on_token: called with
    each token; returning False cancels the text. ends: ids that end the text and have no characters. bias: what is
    added to the scores of ids.
    """

    prompt: Sequence[int]
    settings: Drawing
    seed: int
    done: Callable[[list[int]], bool]
    alternatives: int | None = None
    ends: Collection[int] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    on_token: Callable[[Token], bool] | None = None
    tokens: list[Token] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def ids(self) -> list[int]:
        """The sampled ids."""
        return [t.id for t in self.tokens]

    @property
    def text(self) -> list[int]:
        """The ids of the prompt and of the continuation."""
        return [*self.prompt, *self.ids]

    @property
    def goes_on(self) -> bool:
        """Whether another token is to be sampled."""
        return self.finish is None

    @property
    def left(self) -> int:
        """The number of tokens that may still be sampled."""
        return self.settings.max_tokens - len(self.tokens)

    def add(self, token: Token) -> None:
        """Append a token and determine whether it is the last one."""
        self.tokens.append(token)
        if self.on_token is not None and not self.on_token(token):
            self.finish = "cancelled"
        elif self.done(self.ids):
            self.finish = "stop"
        elif self.left <= 0:
            self.finish = "length"


class Writer:
    """Every rank of the model's mesh calls the same methods with the same arguments and gets all results."""

    def __init__(self, scorer: NativeScorer, *, together: int = 16) -> None:
        self.scorer, self.together = scorer, together
        self.model, self.tokenizer = scorer.model, scorer.tokenizer

    def loglikelihood(self, requests: Sequence[Request]) -> list[Scored]:
        """Return the scorer's log-likelihoods."""
        return self.scorer.loglikelihood(requests)

    def generate(self, prompts: Sequence[str], *, settings: Sampling) -> list[str]:
        """Return one continuation per prompt, in order, without the prompt."""
        return [w.text for w in self.write(prompts, Drawing(**settings.model_dump()))]

    def unseen(self, prompts: Sequence[str]) -> list[int]:
        """Return for each prompt the number of leading tokens that are cut off, because the prompt exceeds the
        sequence."""
        return [max(0, len(ids) - self.scorer.sequence) for ids in self.tokenizer.prompt_ids(prompts)]

    def write(self, prompts: Sequence[str], settings: Drawing, *, alternatives: int | None = None) -> list[Written]:
        """Generate after each prompt; returns texts, tokens and log-probabilities."""
        drafts = [
            self.draft(ids, settings, seed=seed_for(settings.seed, "prompt", n), alternatives=alternatives)
            for n, ids in enumerate(self.tokenizer.prompt_ids(prompts))
        ]
        self.write_drafts(drafts)
        return [self.written(d) for d in drafts]

    def write_streamed(
        self, prompt: str, settings: Drawing, send: Callable[[str], None], alternatives: int | None = None
    ) -> Written:
        """Generate after a prompt on a single rank. `send` receives the text in pieces, which together are that of
        `write`."""
        (ids,) = self.tokenizer.prompt_ids([prompt])
        seed = seed_for(settings.seed, "prompt", 0)
        return self.stream(self.draft(ids, settings, seed=seed, alternatives=alternatives), send)

    def stream(self, draft: Draft, send: Callable[[str], None]) -> Written:
        """Generate a draft on a single rank. `send` receives its text in pieces."""
        detokenizer = Detokenizer(self.tokenizer, draft.settings.stop, before=draft.prompt)

        def on_token(token: Token) -> bool:
            if token.id not in draft.ends:
                send(detokenizer.push(token.id))
            return True

        draft.on_token = on_token
        self.write_drafts([draft])
        send(detokenizer.close())
        return self.written(draft)

    def draft(
        self,
        prompt: Sequence[int],
        settings: Drawing,
        *,
        seed: int,
        alternatives: int | None = None,
        ends: Collection[int] = (),
        bias: Mapping[int, float] | None = None,
    ) -> Draft:
        """Create a draft that ends at the tokenizer's ends, at the ids in `ends`, or at the texts in `settings.stop`.

        bias: what is added to the scores of ids.
        """
        if alternatives is not None:
            alternatives = min(alternatives, self.tokenizer.vocabulary)
        ends = self.tokenizer.ends.union(ends)
        done = stopper(self.tokenizer, settings.stop, prompt, ends)
        return Draft(prompt, settings, seed, done, alternatives, ends, bias or {})

    def written(self, draft: Draft) -> Written:
        """Return the text of a draft, without the tokens that end it and without stop texts."""
        text = self.tokenizer.decode_after(draft.prompt, [i for i in draft.ids if i not in draft.ends])
        return Written(cut_at(draft.settings.stop, text), draft.tokens, draft.finish or "cancelled")

    def write_drafts(self, drafts: Sequence[Draft]) -> None:
        """Generate all drafts to their end, the longest first, in batches of similar length."""
        order = sorted(range(len(drafts)), key=lambda n: -len(drafts[n].prompt))
        groups = [order[n : n + self.together] for n in range(0, len(order), self.together)]
        data = self.model.mesh.data
        with torch.no_grad():
            for group in groups[data.index :: data.size]:
                write_together(self.model, [drafts[n] for n in group], self.choose)
        if data.size > 1:
            self._share(drafts)

    def choose(self, logits: Tensor | None, drafts: Sequence[Draft]) -> list[int]:
        """Select the next id of every draft, and add it to those that continue. logits: [B, V] on the last stage, else
        None."""
        most = max((d.alternatives for d in drafts if d.alternatives is not None), default=None)
        found = torch.zeros(len(drafts), _row_length(drafts), dtype=torch.float64, device=self.model.device)
        if logits is not None:
            logits = finite(logits)
            settings = [d.settings for d in drafts]
            lowered = penalised(logits, [d.text for d in drafts], [s.repetition_penalty for s in settings])
            lowered = biased(lowered, [_bias(d) for d in drafts])
            found = logprob_rows(logits, choose(lowered, settings, [_uniform(d) for d in drafts]), most)
        rows: list[list[float]] = self.model.told(found).tolist()
        for draft, row in zip(drafts, rows, strict=True):
            if draft.goes_on:
                draft.add(Token.of_row(row, draft.alternatives))
        return [int(row[0]) for row in rows]

    def _share(self, drafts: Sequence[Draft]) -> None:
        """Send the texts of each data rank to all ranks."""
        mesh, device = self.model.mesh, self.model.device
        contributes = self.model.predicts and mesh.tensor.index == 0
        mine = [(n, d) for n, d in enumerate(drafts) if contributes and d.finish is not None]
        ends = torch.zeros(len(drafts), 2, dtype=torch.float64)
        for number, draft in mine:
            ends[number] = torch.tensor([len(draft.tokens), FINISHES.index(draft.finish)])
        ends = sum_over_ranks_(ends.to(device), mesh).cpu()
        longest = int(ends[:, 0].max()) if drafts else 0  # the longest generated text, which may be far below the limit
        table = torch.zeros(len(drafts), longest, _row_length(drafts), dtype=torch.float64)
        for number, draft in mine:
            for place, token in enumerate(draft.tokens):
                row = token.row()
                table[number, place, : len(row)] = torch.tensor(row)
        table = sum_over_ranks_(table.to(device), mesh).cpu()
        for draft, rows, (count, finish) in zip(drafts, table.tolist(), ends.tolist(), strict=True):
            draft.tokens = [Token.of_row(row, draft.alternatives) for row in rows[: int(count)]]
            draft.finish = FINISHES[int(finish)]


def read_prompt(rows: Rows, ids: Sequence[int], alternatives: int) -> list[Token]:
    """Return at most sequence + 1 ids of a prompt with their log-probabilities. The first has none."""
    found = [Token(ids[0])] if ids else []

    def use(logits: Tensor, following: Tensor) -> None:
        table = logprob_rows(logits, following, alternatives).tolist()
        found.extend(Token.of_row(row, alternatives) for row in table)

    if len(ids) > 1:
        rows.score(ids, use)
    return found


def _row_length(drafts: Sequence[Draft]) -> int:
    return max((1 if d.alternatives is None else 2 + 2 * d.alternatives for d in drafts), default=1)


def _bias(draft: Draft) -> dict[int, float]:
    """Return what is added to the scores of the next token's candidates: the bias less the penalties on the ids that
    were sampled."""
    settings, found = draft.settings, dict(draft.bias)
    if settings.frequency_penalty or settings.presence_penalty:
        for token, times in Counter(draft.ids).items():
            penalty = settings.frequency_penalty * times + settings.presence_penalty
            found[token] = found.get(token, 0.0) - penalty
    return found


def biased(logits: Tensor, biases: Sequence[Mapping[int, float]]) -> Tensor:
    """Return logits [B, V] with the bias of each text added."""
    if not any(biases):
        return logits
    logits = logits.clone()
    for row, bias in zip(logits, biases, strict=True):
        ids = torch.tensor(list(bias), dtype=torch.long, device=row.device)
        row[ids] += torch.tensor(list(bias.values()), dtype=row.dtype, device=row.device)
    return logits


def _uniform(draft: Draft) -> float:
    if draft.settings.temperature == 0:
        return 0.0
    return float(generator_for(draft.seed, "generate", len(draft.tokens)).random())


def choose(logits: Tensor, settings: Sequence[Drawing], uniforms: Sequence[float]) -> Tensor:
    """Sample ids [B] from logits [B, V]: the token at `uniforms` in [0, 1) of each text's cumulative distribution."""
    if all(s.temperature == 0 for s in settings):
        return logits.argmax(-1)
    choices = [Choice(s.temperature, s.top_k, s.top_p, 0) for s in settings]
    drawn = [pick(row, c, uniform=u) for row, c, u in zip(logits, choices, uniforms, strict=True)]
    return torch.tensor(drawn, device=logits.device)


def logprob_rows(logits: Tensor, ids: Tensor, alternatives: int | None) -> Tensor:
    """Return ids [B] as rows [B, 2 + 2K] of fp64: id, its log-probability, and of the K most likely tokens, in turn,
    id and log-probability; with alternatives=None only the ids [B, 1].

    Log-probabilities are in nats and those of the model, before temperature, penalties and bias.
    """
    if alternatives is None:
        return ids.double().unsqueeze(1)
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    own = logs.gather(1, ids.unsqueeze(1))
    best, best_ids = logs.topk(min(alternatives, logs.shape[-1]), dim=-1)
    top = torch.stack([best_ids.double(), best.double()], dim=-1).flatten(1)
    return torch.cat([ids.unsqueeze(1).double(), own.double(), top], dim=1)


def stopper(
    tokenizer: Tokenizer, stops: Sequence[str], prompt: Sequence[int], ends: Collection[int] = ()
) -> Callable[[list[int]], bool]:
    """Return the predicate that decides from the sampled ids whether the text is over, consistently with
    `Writer.written`. ends: ids that end it, besides those of the tokenizer.

    A token has at least one byte, so only the last ids are decoded. They are decoded after their predecessors,
    because some tokenizers spell the first token of a text differently, and never from within a run of byte tokens
    that form a character together.
    """
    ends, bytes_alone = tokenizer.ends.union(ends), tokenizer.byte_tokens
    longest = max((len(s.encode()) for s in stops), default=0) + 1

    def done(drawn: list[int]) -> bool:
        if drawn and drawn[-1] in ends:
            return True
        if not stops:
            return False
        begin = max(0, len(drawn) - longest)
        while begin and drawn[begin] in bytes_alone and drawn[begin - 1] in bytes_alone:
            begin -= 1
        before = [*prompt, *drawn[max(0, begin - CONTEXT_TOKENS) : begin]][-CONTEXT_TOKENS:]
        text = tokenizer.decode_after(before, drawn[begin:])
        return any(s in text for s in stops)

    return done
