"""Laws of `trivium plan search` and `trivium plan explain`."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from trivium.cli import main as entry

MT_NLG = ("--model", "mt-nlg-530b", "--machine", "selene", "--nodes", "280", "--batch", "1920")
PROBE = """
import sys
from trivium.cli.main import main
try:
    main()
finally:
    print(*sorted({m.split(".")[0] for m in sys.modules}), file=sys.stderr)
"""


@pytest.fixture
def call(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., tuple[int, str, str]]:
    """Runs `trivium plan ...`: exit code, standard output, standard error."""

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["trivium", "plan", *words])
        with pytest.raises(SystemExit) as stopped:
            entry.main()
        return (int(stopped.value.code or 0), *capsys.readouterr())

    return run


def test_search_prints_the_winners_and_imports_nothing_heavy():
    command = [sys.executable, "-c", PROBE, "plan", "search", *MT_NLG, "--top", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5 + 3  # subject, blank, head
    assert not {"torch", "scipy", "plotly", "jinja2", "pyarrow"} & set(done.stderr.split())


def test_the_json_of_a_search_has_the_winners_in_order(call):
    code, out, _ = call("search", *MT_NLG, "--top", "4", "--json")
    tree = json.loads(out)
    seconds = [winner["seconds"] for winner in tree["winners"]]
    assert code == 0 and len(seconds) == 4 and seconds == sorted(seconds)
    assert (tree["machine"], tree["ranks"], tree["batch"]) == ("selene", 2240, 1920)


def test_an_option_of_a_search_and_the_field_that_it_stands_for_mean_the_same(call):
    model = ("--set", "plan.model.layers=70")
    code, by_option, _ = call("search", *MT_NLG, *model, "--json")
    sets = ("--preset", "mt-nlg-530b", "--set", "machine=selene", "--set", "plan.batch.sequences=1920")
    assert code == 0 and by_option == call("search", *sets, "--nodes", "280", *model, "--json")[1]
    assert json.loads(by_option)["winners"] != json.loads(call("search", *MT_NLG, "--json")[1])["winners"]


def test_explain_tells_the_near_miss_of_mt_nlg(call):
    code, out, _ = call("explain", *MT_NLG, "--schedules", "1f1b,interleaved")
    assert code == 0
    assert "micro-batches 240 is not a multiple of pipeline 35" in out and "batch 1,960" in out
    assert "spans nodes of 8" in out and "memory: " in out


def test_the_json_of_explain_adds_what_was_rejected(call):
    _, out, _ = call("explain", *MT_NLG, "--json")
    assert {"winners", "runners_up", "rejected", "rejected_by_memory", "near_misses"} <= json.loads(
        out
    ).keys()


def test_a_search_for_this_machine_takes_the_ranks_of_the_config(call):
    code, out, _ = call("search", "--model", "demo", "--top", "2", "--json")
    assert code == 0 and json.loads(out)["winners"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--model", "mt-nlg-530"), "did you mean 'mt-nlg-530b'?"),
        (("--model", "mt-nlg-530b", "--machine", "selena"), "did you mean 'selene'?"),
        ((*MT_NLG[:4], "--nodes", "2"), "too much"),
        ((*MT_NLG[:4], "--nodes", "2"), "nodes ("),
        ((*MT_NLG, "--ranks", "999999"), "999999 ranks"),
        ((*MT_NLG, "--schedules", "zb-h2"), "zb-h2"),
        ((*MT_NLG[:4], "--nodes", "281"), "no layout of 2248 ranks is legal"),
        ((*MT_NLG[:4], "--nodes", "281"), "nearest legal batch: 1,686 or 1,967"),
        (
            (*MT_NLG, "--set", "plan.layout.tensor=4"),
            "--set plan.layout.tensor=4: a search takes only plan.model",
        ),
        (
            (*MT_NLG, "--set", "plan.batch.sequences=960"),
            "'plan.batch.sequences' is given twice (960 and 1920)",
        ),
        ((*MT_NLG, "--set", "machine=eos"), "'machine' is given twice (eos"),
    ],
)
def test_bad_input_is_refused_with_the_remedy(call, words, expected):
    code, _, err = call("search", *words)
    assert code == 2 and expected in err


def test_a_model_too_small_for_a_whole_machine_is_told_to_take_less_of_it(call):
    code, _, told = call("search", "--model", "gpt-125m")
    assert code == 2 and "give --nodes or --ranks for fewer" in told
