import random

import pytest

from trivium.evaluation.branches import MAX_ROW_TOKENS, batches, families
from trivium.evaluation.windows import Window


def windows(count=200, seed=1, vocabulary=4, longest=30):
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        ids = [draw.randrange(vocabulary) for _ in range(draw.randint(2, longest))]
        found.append(Window(ids, draw.randint(1, len(ids) - 1)))
    return found


def replay(made):
    """Return (window, target) -> the tokens read before it, computed from trunks and branches alone."""
    found = {}
    for batch in made:
        for family in batch:
            for row in family.rows:
                for ask in row.asks:
                    place, path = ask.place, []
                    if place >= row.trunk:
                        at = place - row.trunk
                        while at >= 0:
                            path.append(row.tokens[at])
                            at = row.parents[at]
                        place = row.trunk - 1
                    found.setdefault(ask.number, []).append((family.trunk[: place + 1] + path[::-1], ask.target))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_targets_are_predicted_from_exactly_the_preceding_ids(seed):
    given = windows(seed=seed)
    found = replay(batches(families(given)))
    for number, window in enumerate(given):
        first = len(window.ids) - window.answer
        expected = [(window.ids[:k], window.ids[k]) for k in range(first, len(window.ids))]
        assert found[number] == expected


def test_shared_prefixes_are_read_once():
    prompt, questions = list(range(100, 200)), [list(range(q, q + 7)) for q in range(50)]
    given = [Window(prompt + q + [a, a + 1], 2) for q in questions for a in (300, 400, 500)]
    made = batches(families(given))
    assert sum(f.tokens for b in made for f in b) == 100 + 50 * (7 + 3)
    assert sum(f.tokens for b in made for f in b) < sum(len(w.read) for w in given) / 10


def test_rows_and_batches_are_bounded():
    given = [Window([*range(30), k, *range(50, 90)], 5) for k in range(100)]
    made = batches(families(given))
    assert all(len(row.tokens) <= MAX_ROW_TOKENS for b in made for f in b for row in f.rows)
    assert sorted(replay(made)) == list(range(100))


def test_duplicate_and_single_token_windows_are_answered():
    given = [Window([5, 6], 1)] * 3 + [Window([5, 7], 1), Window([5, 6, 7], 2)]
    assert sorted(replay(batches(families(given)))) == [0, 1, 2, 3, 4]
