"""`trivium recipes`: what is listed, what is refused before anything is written, and the check against a band."""

import shutil
from pathlib import Path

import pytest

from trivium.cli import recipes
from trivium.recipes import recipe


def test_recipes_are_listed_with_their_price_and_state(call) -> None:
    ended = call("recipes")
    assert ended.returncode == 0, ended.stderr
    lines = {line.split()[0]: line for line in ended.stdout.splitlines()}
    assert "not published" in lines["books-124m"] and "not published" in lines["fineweb-edu-10b"]
    assert "books-small" in lines and "8 H100" in lines["fineweb-edu-10b"]


def test_a_recipe_without_a_note_is_named_after_the_others(call, tmp_path: Path, monkeypatch) -> None:
    for name in ("books-124m", "books-small"):
        shutil.copytree(recipe.folder_of(name), tmp_path / "recipes" / name)
    about = tmp_path / "recipes" / "books-124m" / "recipe.yaml"
    about.write_text("".join(line for line in about.open() if not line.startswith("note:")))
    monkeypatch.setattr(recipe, "shipped", lambda place: tmp_path / place)
    ended = call("recipes")
    assert ended.returncode == 2 and f"{about}: note: " in ended.stderr
    assert ended.stderr.strip().endswith("none was given; give it in the file")
    assert "books-small" in ended.stdout and "books-124m" not in ended.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("book-small",), "there is no recipe 'book-small'; did you mean 'books-small'?"),
        (("books-124m", "--check"), "no band of books-124m is published yet"),
        (("books-124m",), "--data is missing: books-124m trains on 363 public-domain books"),
    ],
)
def test_a_recipe_that_cannot_be_run_as_asked_is_refused(
    words: tuple[str, ...], says: str, call, tmp_path: Path
) -> None:
    ended = call("recipes", "run", *words)
    assert ended.returncode == 2 and says in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["books-124m", "fineweb-edu-10b"])
def test_a_recipe_for_other_machines_is_priced_and_says_that_it_was_not_run(name: str, call, tmp_path: Path) -> None:
    ended = call("recipes", "run", name, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "not run" in ended.stdout and "by this estimate" in ended.stdout and "text: " in ended.stdout
    assert list(tmp_path.iterdir()) == []


INTERVAL = {"mean": 4.0, "low": 3.9, "high": 4.1}
BAND = {
    "recipe": "books-small",
    "seeds": [1, 2, 3],
    "date": "2026-11-28",
    "text_bytes": 1000,
    "band": {"50": INTERVAL, "100": INTERVAL, "bits_per_byte": INTERVAL},
}


@pytest.mark.parametrize(("loss", "code"), [(4.05, 0), (4.2, 1)])
def test_a_curve_is_compared_with_the_published_band(
    loss: float, code: int, call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    points = [{"step": 50, "validation_loss": loss}, {"step": 100, "validation_loss": 4.0}]
    curve = {"points": points, "bits_per_byte": 4.0, "text_bytes": 1000, "cloze_accuracy": {"0": 0.5}}
    monkeypatch.setattr(recipes, "band_of_recipe", lambda name: BAND)
    monkeypatch.setattr(recipes, "_perform", lambda *words, **more: None)
    monkeypatch.setattr(recipes, "curve_of", lambda *words: curve | {"tokens_per_second": 1.0, "share_of_peak": None})
    (tmp_path / "run").mkdir()
    words = ("recipes", "run", "books-small", "--data", "x", "--out", "run", "--check")
    ended = call(*words, "--set", "seed=7")
    assert ended.returncode == code and ended.stdout.count("OUTSIDE") == code
    assert ("the curve lies outside of the published band at 50" in ended.stderr) is bool(code)
    assert "3 seeds, 2026-11-28" in call("recipes").stdout
    changed = call(*words, "--lr", "0.1")
    assert changed.returncode == 2 and "--check compares the recipe as it is published" in changed.stderr
