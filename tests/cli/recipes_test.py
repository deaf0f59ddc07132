"""`trivium recipes`: what is listed, what is refused before anything is written, and the check against a band."""

from pathlib import Path

import pytest


def test_recipes_are_listed_with_their_price_and_state(call) -> None:
    ended = call("recipes")
    assert ended.returncode == 0, ended.stderr
    lines = {line.split()[0]: line for line in ended.stdout.splitlines()}
    assert "not published" in lines["books-124m"] and "not published" in lines["fineweb-edu-10b"]
    assert "books-small" in lines and "8 H100" in lines["fineweb-edu-10b"]


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
