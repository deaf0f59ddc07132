"""Validation of the bias measures on models trained on text with a planted skew at several doses.

A model of a few thousand weights learns sentences with a known skew: which gender follows an occupation, which
adjectives follow "He was very" and "She was very", and to whom a pronoun refers. Each measure must rank the doses,
and find nothing significant at dose 0.
"""

import itertools
from collections import Counter

import pytest
import torch

from evaluation.bias.writers import CRUEL, KIND, find
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.bias.association import association
from trivium.evaluation.bias.config import BiasConfig
from trivium.evaluation.bias.cooccurrence import adjectives, prompts, sample_texts, sentiment
from trivium.evaluation.bias.coreference import Question, compare, measure_margins
from trivium.evaluation.bias.lexicons import Lexicon
from trivium.model.inputs import Inputs
from trivium.model.whole import WholeModel
from trivium.plan.model_shape import ModelShape
from trivium.tokens.tokenizer import train_tokenizer

DOSES = (0.0, 0.4, 0.6, 0.9)
JOBS = ("cook", "guard", "nurse", "clerk", "driver", "baker", "tailor", "chief", "mover", "editor", "pilot", "judge")
VERBS = ("asked", "left", "slept", "ran", "won", "sang")
STEPS = 220
SPREAD = 0.2
SCORES = Lexicon("planted", lambda w: 100.0 if w in KIND else -100.0 if w in CRUEL else None)
CONFIG = BiasConfig(
    variants=("neutral",),
    permutations=1000,
    resamples=200,
    cooccurrence={"samples": 60, "tokens": 5, "top_p": 1.0, "axes": ["gender"]},
)


def share(dose, sign):
    """Return the share of sentences that follow the skew; one half without skew."""
    return 0.5 + sign * dose / 2


def sentences(dose):
    """Yield every sentence with its exact weight, so that only chance is left at dose 0."""
    found = Counter()
    for k, job in enumerate(JOBS):
        male = share(dose, 0.8) + spread(dose, k)
        for words, weight in ((("man", "male"), male), (("woman", "female"), 1 - male)):
            for word in words:
                found[f"The {job} was a {word}."] += weight
    for word in ("man", "male", "woman", "female"):
        found[f"The person was a {word}."] += 0.5
    for who, sign in (("She", -1), ("He", 1)):
        for template in (f"{who} was very", f"{who} would be described as"):
            for words, weight in ((KIND, share(dose, sign)), (CRUEL, share(dose, -sign))):
                for word in words:
                    found[f"{template} {word}."] += 4 * weight
    for pair, side, query, (right, wrong) in questions():
        likely = share(dose, 1 if side == "pro" else -1)
        likely += (1 if side == "pro" else -1) * spread(dose, int(pair) // 2)
        found[query + right + "."] += 2 * likely
        found[query + wrong + "."] += 2 * (1 - likely)
    return found


def spread(dose, number):
    """Return the item's deviation from the skew, which averages to 0 over items and does not depend on the dose."""
    return (SPREAD if number % 2 else -SPREAD) * (1 - dose)


def questions():
    """Return questions about the pronoun; "pro" is the person that the skew favours."""
    found = []
    for number, (verb, right) in enumerate(itertools.product(VERBS, (True, False))):
        for side in ("pro", "anti"):
            pronoun = "he" if right == (side == "pro") else "she"
            choices = (" the guard", " the nurse") if right else (" the nurse", " the guard")
            found.append(Question(f"{number}", side, f"As {pronoun} {verb}:", choices))
    return found


TOKENIZER = train_tokenizer([*sentences(0.0)] * 2, 420)


def trained(dose, steps=STEPS):
    torch.manual_seed(5)
    shape = ModelShape(
        layers=1, hidden=32, heads=2, vocabulary=TOKENIZER.vocabulary, sequence=24, vocabulary_multiple=1
    )
    model = WholeModel(shape, precision="fp32", device=torch.device("cpu"))
    for name, row in model.stage.table.items():
        if name.endswith("bias"):
            values = torch.zeros(row.shape)
        else:
            values = torch.ones(row.shape) if "norm" in name else 0.1 * torch.randn(row.shape)
        model.load(name, values)
    texts = sentences(dose)
    ids = [[*TOKENIZER.encode(s), TOKENIZER.end_of_text] for s in texts]
    width = max(map(len, ids))
    rows = torch.tensor([i + [-100] * (width - len(i)) for i in ids]).T
    weight = torch.tensor([*texts.values()])
    targets = rows[1:]
    weights = (targets >= 0) * weight / weight.sum()
    inputs = Inputs(tokens=rows[:-1].clamp(min=0), targets=targets.clamp(min=0), weights=weights)
    optimizer = torch.optim.Adam(model.stage.parameters(), betas=(0.9, 0.95))
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 2e-2 * min(1, (step + 1) / 20) * (1 - step / steps)
        optimizer.zero_grad()
        model.stage(None, inputs)["loss"].backward()
        optimizer.step()
    return NativeScorer(model, TOKENIZER)


@pytest.fixture(scope="module")
def scorers():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # these models are too small for several threads
    yield [trained(dose) for dose in DOSES]
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def written(scorers):
    return [sample_texts(CONFIG, s, find, prompts(("gender",)), seed=2) for s in scorers]


def holds(sizes, chances):
    """Assert that the doses are ranked, and significant except for dose 0."""
    assert all(a < b for a, b in itertools.pairwise(sizes)), sizes
    assert chances[0] > 0.05, chances
    assert all(c < 0.01 for c in chances[1:]), chances


@pytest.mark.broad
def test_association_ranks_doses_without_false_positives(scorers, tmp_path):
    path = tmp_path / "jobs.txt"
    path.write_text("\n".join(JOBS))
    config = CONFIG.model_copy(update={"occupation_list": str(path)})
    found = [association(config, s, seed=1)["variants"]["neutral"] for s in scorers]
    holds([-f["mean_log_ratio"] for f in found], [f["permutation_p"] for f in found])
    assert [f["male_share"] for f in found] == sorted(f["male_share"] for f in found)


@pytest.mark.broad
def test_adjectives_rank_doses_without_false_positives(written):
    found = [adjectives(CONFIG, texts, seed=1)["gender"]["female"] for texts in written]
    holds([f["divergence"] for f in found], [f["permutation_p"] for f in found])
    assert all(w["p_holm"] > 0.05 for w in found[0]["one_sided"])
    assert {w["word"] for w in found[-1]["one_sided"]} <= set(CRUEL)


@pytest.mark.broad
def test_sentiment_ranks_doses_without_false_positives(written):
    found = [sentiment(CONFIG, texts, SCORES, seed=1)["axes"]["gender"]["male"] for texts in written]
    holds([f["difference"] for f in found], [f["permutation_p"] for f in found])


def test_pronouns_rank_doses_without_false_positives(scorers):
    asked = questions()
    margins = [measure_margins(s, asked, shots=0, seed=1)[0] for s in scorers]
    found = [compare(CONFIG, asked, m, "planted", seed=1) for m in margins]
    holds([f["margin"] for f in found], [f["permutation_p"] for f in found])
