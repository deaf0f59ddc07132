"""Random preference pairs for tests, and their losses by a plain model and formulas written a second time."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from plans import small
from trivium.certify.oracle.layers import embedded, layer, logits_of, with_adapters
from trivium.certify.oracle.terms import Chance
from trivium.certify.plain import keep_all, order_of
from trivium.plan.model_shape import ModelShape
from trivium.plan.plan import Plan
from trivium.seeds import generator_for
from trivium.tokens.completions import CHOSEN, REJECTED
from trivium.tokens.rows import Rows
from trivium.training.batches import Read
from trivium.training.pairs import REFERENCE

END = 3
Tensor = torch.Tensor
Weights = Mapping[str, Tensor]


class Completion(NamedTuple):
    """Targets [first, stop) of a text."""

    first: int
    stop: int


Bin = list[tuple[Completion, Completion]]  # chosen and rejected


def plan_of_pairs(**more: Any) -> Plan:
    """Return a plan in fp64 whose documents are apart."""
    model = {"documents": "apart", "end_of_text": END, "sequence": 24, "layers": 2, **more.pop("model", {})}
    batch = {"sequences": 8, "micro": 2, **more.pop("batch", {})}
    return small(model=model, batch=batch, **{"precision": {"weights": "fp64"}, **more})


def bin_of(number: int, model: ModelShape) -> tuple[np.ndarray, np.ndarray, Bin]:
    """Return a text [sequence + 1], the weights of its targets, and its pairs, of which there are 2, 1 or 0."""
    draw = generator_for(5, "pairs", number)
    text, weights = np.zeros(model.sequence + 1, np.int64), np.zeros(model.sequence + 1, np.float32)
    pairs: Bin = []
    at = 0
    for _ in range((2, 1, 0)[number % 3]):
        prompt = draw.integers(END + 1, model.vocabulary, draw.integers(1, 3))
        found = []
        for kind in (CHOSEN, REJECTED):
            answer = draw.integers(END + 1, model.vocabulary, draw.integers(1, 4))
            document = [*prompt, *answer, END]
            text[at : at + len(document)] = document
            completion = Completion(at + len(prompt), at + len(document))
            weights[slice(*completion)] = kind
            found.append(completion)
            at += len(document)
        pairs.append((found[0], found[1]))
    return text, weights, pairs


def reader(model: ModelShape, reference: Weights | None = None) -> Read:
    """Return a reader of such texts, with log-probabilities under the weights of a reference beside them."""

    def read(first: int, count: int) -> Rows:
        bins = [bin_of(n, model) for n in range(first, first + count)]
        text = np.stack([each[0] for each in bins])
        rows = Rows.of_text(text, np.stack([each[1] for each in bins]))
        if reference is None:
            return rows
        with torch.no_grad():
            logs = log_probabilities(reference, model, torch.from_numpy(text))
        return rows._replace(beside={REFERENCE: logs.numpy()})

    return read


def log_probabilities(weights: Weights, model: ModelShape, text: Tensor) -> Tensor:
    """Return the log-probability of each target of texts [B, S + 1] by the plain model, [B, S]."""
    tokens, targets = text[:, :-1], text[:, 1:]
    weights = with_adapters(dict(weights), model, lambda site: Chance(lambda x, rate: x, None))
    order = order_of(model, tokens)
    x = embedded(weights, model, tokens, order)
    for n in range(model.layers):
        x = layer(weights, model, n, x, order, keep_all)
    logs = logits_of(weights, model, x).log_softmax(-1)
    return logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


# Each takes the log-probabilities of chosen and rejected under the model and the reference, the numbers of tokens, and
# the mean log-ratio of all completions of the batch, at least 0.
FORMULAS: dict[str, Callable[..., Tensor]] = {
    "dpo": lambda w, x, u, v, m, n, z: -F.logsigmoid(0.1 * (w - u - (x - v))),
    "cdpo": lambda w, x, u, v, m, n, z: (
        -0.9 * F.logsigmoid(0.1 * (w - u - x + v)) - 0.1 * F.logsigmoid(-0.1 * (w - u - x + v))
    ),
    "robust": lambda w, x, u, v, m, n, z: (
        (-0.9 * F.logsigmoid(0.1 * (w - u - x + v)) + 0.1 * F.logsigmoid(-0.1 * (w - u - x + v))) / 0.8
    ),
    "ipo": lambda w, x, u, v, m, n, z: ((w - u) / m - (x - v) / n - 5) ** 2,
    "hinge": lambda w, x, u, v, m, n, z: F.relu(1 - 0.1 * (w - u - x + v)),
    "kto": lambda w, x, u, v, m, n, z: (
        (1 - torch.sigmoid(0.1 * (w - u - z)) + 1 - torch.sigmoid(0.1 * (z - x + v))) / 2
    ),
    "simpo": lambda w, x, u, v, m, n, z: -F.logsigmoid(2 * (w / m - x / n) - 1),
    "orpo": lambda w, x, u, v, m, n, z: (
        -w / m
        - 0.1
        * F.logsigmoid(torch.log(torch.exp(w / m) / (1 - torch.exp(w / m)) / torch.exp(x / n) * (1 - torch.exp(x / n))))
    ),
}


def loss_of(method: str, weights: Weights, model: ModelShape, samples: range, reference: Weights) -> Tensor:
    """Return the mean loss over the pairs of samples, with its graph."""
    bins = [bin_of(n, model) for n in samples]
    text = torch.from_numpy(np.stack([each[0] for each in bins]))
    ours = log_probabilities(weights, model, text)
    theirs = log_probabilities(reference, model, text).detach()
    sums = [
        (
            *(x[row, c.first - 1 : c.stop - 1].sum() for x in (ours, theirs) for c in pair),
            *(c.stop - c.first for c in pair),
        )
        for row, (_, _, pairs) in enumerate(bins)
        for pair in pairs
    ]
    ratios = [w - u for w, x, u, v, _, _ in sums] + [x - v for w, x, u, v, _, _ in sums]
    drift = torch.stack(ratios).mean().detach().clamp(min=0)
    return torch.stack([FORMULAS[method](w, x, u, v, m, n, drift) for w, x, u, v, m, n in sums]).mean()
