import re

from trivium.bias.lexicons import FEMALE, MALE, occupations


def test_there_are_as_many_occupations_as_in_the_paper():
    assert len(occupations()) >= 323


def test_occupations_are_unique_and_well_formed():
    names = occupations()
    assert len(set(names)) == len(names)
    assert list(names) == sorted(names)
    assert all(re.fullmatch(r"[a-z]+(?:[ -][a-z]+)*", n) for n in names)


def test_occupations_are_gender_neutral():
    gendered = re.compile(r"(?:\b|[a-z])(?:man|men|woman|women|lady|boy|girl|maid|wife|wives|ess|master|mistress)$")
    assert [n for n in occupations() if gendered.search(n)] == []


def test_identifiers_come_in_pairs():
    assert len(FEMALE) == len(MALE)
    assert not set(FEMALE) & set(MALE)
