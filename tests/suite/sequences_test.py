"""Probes of token sequences: what is memorised, and what the context is worth."""

import pytest

from chaos.scene import VOCABULARY, write_tokens
from evaluation.models import plan_of, scorer_of
from trivium.evaluation.windows import Encoded
from trivium.model.generate import Choice, Draft
from trivium.plan.plan import Plan
from trivium.suite.sequences import SEQUENCES, choose, context_gain, memorisation, prompt_tokens, validation_of
from trivium.tokens.samples import TokenDataset


class Reciting:
    """Knows some texts by heart, and gives each of their tokens 0 nats, those of others 1 nat."""

    def __init__(self, known: list[list[int]]) -> None:
        self.known = known

    def loglikelihood_of_ids(self, requests):
        exact = [[*r.context, *r.continuation] in self.known for r in requests]
        return [(0.0 if e else -float(len(r.continuation)), e) for e, r in zip(exact, requests, strict=True)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> TokenDataset:
    return TokenDataset.open(write_tokens(tmp_path_factory.mktemp("data")), "train", sequence=8, seed=1234)


def test_memorisation_separates_what_was_seen_from_what_comes_later_and_what_is_held_out(data: TokenDataset) -> None:
    model = {"layers": 1, "hidden": 8, "heads": 1, "vocabulary": VOCABULARY, "sequence": 8}
    plan = Plan(model=model, batch={"sequences": 4})
    steps = 5
    heldout = validation_of(data)
    sequences = choose(data, heldout, plan, steps)
    assert [t.sample for t in sequences.trained] == list(range(20))
    assert len(sequences.heldout) == min(SEQUENCES, heldout.num_samples)
    for t in sequences.trained:
        first, count = plan.batch.at(t.step - 1)
        assert first <= t.sample < first + count and t.ids == data.sample(t.sample).tolist()
    known = [t.ids[:8] for t in sequences.trained if t.sample in (0, 5, 19)]
    found = memorisation(sequences, Reciting(known), 2)
    assert found["recited"] == [0, 5, 19] and found["k"] == prompt_tokens(8) == 4
    assert (found["seen"]["n"], found["seen"]["accuracy"]) == (8, 2 / 8)
    assert (found["unseen"]["n"], found["unseen"]["accuracy"]) == (12, 1 / 12)
    assert (found["heldout"]["accuracy"], found["heldout"]["nats_per_token"]) == (0, 1)
    assert memorisation(sequences, Reciting(known), 0)["seen"] is None
    assert context_gain(sequences, Reciting([]))["gain"] == 0


def test_a_continuation_is_exact_if_and_only_if_greedy_decoding_returns_it() -> None:
    scorer = scorer_of(plan_of())
    prompts = [[n, n + 1, 2 * n + 3, 7] for n in range(8)]
    drafts = [Draft(p, Choice(0.0, 0, 1.0, 0), lambda drawn: False, 4) for p in prompts]
    written = scorer.continue_drafts(drafts)
    changed = [[*row[:place], (row[place] + 1) % 250, *row[place + 1 :]] for row in written for place in range(4)]
    own = [Encoded(p, row) for p, row in zip(prompts, written, strict=True)]
    other = [Encoded(prompts[n // 4], row) for n, row in enumerate(changed)]
    exact = [e for _, e in scorer.loglikelihood_of_ids([*own, *other])]
    assert exact == [True] * len(own) + [False] * len(other)
