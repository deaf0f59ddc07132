"""Poisons are noticed at their step and their culprits named; and each count can be other than expected."""

from pathlib import Path

import pytest

from chaos import poison
from chaos.poison import KINDS, poison_often
from chaos.scene import LAYOUTS
from trivium.errors import Preempted
from trivium.training import spikes
from trivium.training.lineage import culprit
from trivium.training.supervision.preemption import EndedAtOnce


@pytest.mark.broad
def test_every_poison_is_noticed_and_its_culprit_named(tmp_path: Path) -> None:
    found = poison_often(tmp_path, len(KINDS))
    assert found["losses"] == [] and found["undetected"] == 0
    assert found["poisons"] == found["rightly_named"] == len(KINDS)


def test_every_kind_of_poison_meets_every_layout() -> None:
    met = [poison.kind_and_layout(number) for number in range(len(KINDS) * len(LAYOUTS))]
    assert all(met.count((kind, layout)) == 1 for kind in KINDS for layout in LAYOUTS)


def test_a_watch_that_accepts_everything_is_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(spikes.SpikeWatch, "_cause", lambda self, totals: "")
    found = poison_often(tmp_path, 1)
    assert found["undetected"] == 1


@pytest.mark.broad
@pytest.mark.parametrize("wrong", ["row", "document", "layer"])
def test_a_search_that_names_another_culprit_is_found(tmp_path: Path, monkeypatch, wrong: str) -> None:
    right = culprit.find_culprit

    def other(*arguments):
        found = right(*arguments)
        if wrong == "row":
            found["rows"] = [found["rows"][0] + 1]
        elif wrong == "document":
            found["culprits"][0]["document"] += "#"
        else:
            found["layer"] = "layers.9.mlp"
        return found

    monkeypatch.setattr(poison, "find_culprit", other)
    found = poison_often(tmp_path, 1)
    assert found["losses"] and found["undetected"] == 0 and found["rightly_named"] == 0


@pytest.mark.parametrize("ended", [Preempted("asked by SIGTERM"), EndedAtOnce(15)])
def test_one_who_is_asked_to_end_has_missed_no_poison(tmp_path: Path, monkeypatch, ended) -> None:
    def start(work) -> None:
        raise ended

    monkeypatch.setattr(poison, "start", start)
    with pytest.raises(type(ended)):
        poison_often(tmp_path, 1)
