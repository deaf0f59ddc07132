"""The table of saved bytes is what counting gives, and counting notices what the table lacks."""

import pytest

from trivium.certify import saved_polynomials
from trivium.certify.saved_polynomials import as_yaml, count_coefficients, plans
from trivium.cost.saved_bytes import PARTS, polynomials
from trivium.errors import DataError

FEW = plans(60)


def test_every_coefficient_is_the_counted_one() -> None:
    found = count_coefficients(FEW)
    assert {u.term: n for u, n in found.items()} == {u.term: u.term.coefficient for u in found}
    assert {part: [u.term for u in found if u.part == part] for part in PARTS} == {
        part: list(terms) for part, terms in polynomials().items()
    }
    for part, terms in polynomials().items():
        assert f"{part}:" in as_yaml(found) and all("*".join(t.factors) in as_yaml(found) for t in terms)


def test_a_product_that_the_table_lacks_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = {part: terms[:-1] if part == "embedding" else terms for part, terms in polynomials().items()}
    monkeypatch.setattr(saved_polynomials, "polynomials", lambda: lacking)
    with pytest.raises(DataError, match="embedding.*add the product that is missing"):
        count_coefficients(FEW[:12])


def test_too_few_plans_do_not_tell_the_products_apart() -> None:
    with pytest.raises(DataError, match="count more plans"):
        count_coefficients(FEW[:1])
