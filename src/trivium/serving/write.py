"""Generate texts in a batch. Each token is read once, and random draws are keyed, so that no layout changes a text.

Legend: B texts in a batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

import torch

from trivium.model.generate import Choice, finite, penalised, pick, write_together
from trivium.model.whole import WholeModel
from trivium.seeds import generator_for
from trivium.serving.config import Drawing

Tensor = torch.Tensor
Finish = Literal["stop", "length", "cancelled"]
LOGIT_POSITIONS = 128  # positions whose logits are in memory at the same time


class Token(NamedTuple):
    """A token, its log-probability in nats and its most likely alternatives with theirs, if requested."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass
class Draft:
    """A text being generated.

    seed: key of the random draws, together with the position. done: receives all sampled ids and returns whether
    the text ends. alternatives: number of alternatives per token; None for no log-probabilities. heard: called with
    each token; returning False cancels the text. ended: called when the text is complete. rests: returns whether
    generation pauses now, to be continued later.
    """

    prompt: Sequence[int]
    settings: Drawing
    seed: int
    done: Callable[[list[int]], bool]
    alternatives: int | None = None
    heard: Callable[[Token], bool] | None = None
    ended: Callable[[], None] | None = None
    rests: Callable[[], bool] | None = None
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
        """Whether another token is to be sampled now."""
        return self.finish is None and not (self.rests is not None and self.rests())

    @property
    def left(self) -> int:
        """The number of tokens that may still be sampled."""
        return self.settings.max_tokens - len(self.tokens)

    def add(self, token: Token) -> None:
        """Append a token and determine whether it is the last one."""
        self.tokens.append(token)
        if self.heard is not None and not self.heard(token):
            self.finish = "cancelled"
        elif self.done(self.ids):
            self.finish = "stop"
        elif self.left <= 0:
            self.finish = "length"
        if self.finish is not None and self.ended is not None:
            self.ended()


def write_drafts(model: WholeModel, drafts: Sequence[Draft]) -> None:
    """Generate every draft to its end, reporting each token immediately."""
    with torch.no_grad():
        write_together(model, drafts, partial(_choose, model))


def read_prompt(model: WholeModel, ids: Sequence[int], alternatives: int) -> list[Token]:
    """Return the ids of a prompt with their log-probabilities. The first has none.

    Only for a single rank and at most sequence + 1 ids.
    """
    if len(ids) < 2:
        return [Token(i) for i in ids]
    with torch.no_grad():
        hidden = model.hidden(torch.tensor(ids[:-1], device=model.device).unsqueeze(1))
        assert hidden is not None, "a prompt is read where the last stage is"
        targets = torch.tensor(ids[1:], device=model.device)
        parts = [slice(n, n + LOGIT_POSITIONS) for n in range(0, len(targets), LOGIT_POSITIONS)]
        rows = [
            row for part in parts for row in told(model.predict(hidden[part, 0]), targets[part], alternatives).tolist()
        ]
    return [Token(ids[0]), *map(_token, rows)]


def _choose(model: WholeModel, hidden: Tensor | None, drafts: Sequence[Draft]) -> Tensor:
    """Select the next id of every draft [B] and append it to the active ones. hidden: [B, H] on the last stage, else
    None."""
    asked = [d.alternatives for d in drafts if d.alternatives is not None]
    most = min(max(asked), model.model.vocabulary) if asked else None
    found = torch.zeros(len(drafts), 1 if most is None else 2 + 2 * most, dtype=torch.float64, device=model.device)
    if hidden is not None:
        logits = finite(model.predict(hidden))
        settings = [d.settings for d in drafts]
        uniforms = [_uniform(d) for d in drafts]
        ids = choose(
            penalised(logits, [d.text for d in drafts], [s.repetition_penalty for s in settings]), settings, uniforms
        )
        found = told(logits, ids, most)
    found = model.told(found)
    for draft, row in zip(drafts, found.tolist(), strict=True):
        if draft.goes_on:
            draft.add(Token(int(row[0])) if draft.alternatives is None else _token(row, draft.alternatives))
    return found[:, 0].long()


def _token(row: Sequence[float], alternatives: int | None = None) -> Token:
    most = (len(row) - 2) // 2
    shown = most if alternatives is None else min(alternatives, most)
    top = tuple((int(row[2 + k]), row[2 + most + k]) for k in range(shown))
    return Token(int(row[0]), row[1], top)


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


def told(logits: Tensor, ids: Tensor, alternatives: int | None) -> Tensor:
    """Return the id, its log-probability in nats, the K most likely ids and their log-probabilities: [B, 2 + 2K],
    fp64.

    Log-probabilities are those of the model, before temperature and penalty. If alternatives is None, return only
    the ids [B, 1].
    """
    if alternatives is None:
        return ids.double().unsqueeze(1)
    logs = logits.float().log_softmax(-1)
    own = logs.gather(1, ids.unsqueeze(1))
    best, best_ids = logs.topk(min(alternatives, logs.shape[-1]), dim=-1)
    return torch.cat([ids.unsqueeze(1).double(), own.double(), best_ids.double(), best.double()], dim=1)
