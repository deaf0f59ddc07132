"""Laws of `trivium plan search`."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest
import yaml

from trivium.cli import plan_search
from trivium.cli.run_config import Given, based_on, resolve
from trivium.plan.sizes import MAX_PLAN_RANKS, MAX_SEQUENCES
from trivium.planner.search_text import choice_tree

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
def call(call: Callable[..., tuple[int, str, str]]) -> Callable[..., tuple[int, str, str]]:
    """Run `trivium plan`; return exit code, standard output and standard error."""
    return lambda *words: call("plan", *words)


def test_search_prints_the_winners_and_imports_nothing_heavy():
    command = [sys.executable, "-c", PROBE, "plan", "search", *MT_NLG, "--top", "3"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5 + 3 + 1  # subject, blank, head; the chosen plan
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
    code, out, _ = call("search", "--explain", *MT_NLG, "--schedules", "1f1b,interleaved")
    assert code == 0
    assert "micro-batches 240 is not a multiple of pipeline 35" in out and "batch 1,960" in out
    assert "spans nodes of 8" in out and "memory: " in out


def test_the_json_of_explain_adds_what_was_rejected(call):
    _, out, _ = call("search", "--explain", *MT_NLG, "--json")
    assert {"winners", "runners_up", "rejected", "rejected_by_memory", "near_misses"} <= json.loads(out).keys()


def test_a_search_tries_only_what_it_is_told_to(call):
    only = ("tensor=[2,4]", "micro=[1]", "zero=[3]", "shards=[node]", "schedules=[1f1b,zb-h1]", "finalists=5")
    sets = [word for each in only for word in ("--set", f"search.{each}")]
    code, out, told = call("search", *MT_NLG, *sets, "--json")
    winners = json.loads(out)["winners"]
    assert code == 0 and winners, told
    for each in winners:
        layout = each["layout"]
        assert layout["tensor"] in (2, 4) and layout["shards"] in (None, 8 // layout["tensor"])
        assert each["micro"] == 1 and each["zero"] == 3 and each["schedule"] in ("1f1b", "zb-h1")
    assert any(each["layout"]["shards"] for each in winners)
    assert " ZeRO 3 over " in call("search", "--explain", *MT_NLG, *sets)[1]


@pytest.mark.broad
def test_the_winner_is_written_as_a_preset_of_what_it_changes(call, tmp_path):
    mine, out = tmp_path / "mine" / "mine.yaml", tmp_path / "winner.yaml"
    mine.parent.mkdir()
    (mine.parent / "ours.yaml").write_text("base: selene\nnodes: 300\nname: ours")
    mine.write_text("base: mt-nlg-530b\nmachine: ours.yaml\nplan: {compiled: true, batch: {micro: 2}}")
    only = ("plan.model.layers=70", "search.micro=[1]", "search.data=[8]")
    asked = ("--model", str(mine), "--nodes", "280", *(word for each in only for word in ("--set", each)))
    code, _, told = call("search", *asked, "--out", str(out))
    assert code == 0 and str(out) in told
    best = json.loads(call("search", *asked, "--top", "1", "--json")[1])["chosen"]
    before, after = resolve(Given(str(mine), only)), resolve(Given(str(out)))
    assert choice_tree(after.plan) == {k: best[k] for k in choice_tree(after.plan)}
    assert after.model_copy(update={"plan": before.plan}) == before and after.problems() == []
    assert after.plan.batch.ramp == before.plan.batch.ramp and after.plan.model == before.plan.model
    written = yaml.safe_load(out.read_text())
    assert written["base"] == "mine/mine.yaml" and "hidden" not in written["plan"]["model"]
    moved = tmp_path / "elsewhere" / "winner.yaml"
    shutil.copytree(mine.parent, moved.parent / "mine")
    out.rename(moved)
    shutil.rmtree(mine.parent)
    assert resolve(Given(str(moved))).plan == after.plan
    assert based_on(f"{moved.parent}/mine/../mine/mine.yaml", after, moved.parent)[0] == "mine/mine.yaml"
    assert based_on(f"{moved.parent}/../elsewhere/mine/mine.yaml", after, tmp_path / "other")[0].startswith("/")


def test_no_file_that_a_search_reads_is_written_over(call, tmp_path, monkeypatch):
    texts = {"mine.yaml": "base: of/all.yaml", "of/all.yaml": "base: demo\nmachine: a.yaml", "a.yaml": "base: eos"}
    (tmp_path / "of").mkdir()
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "link.yaml").symlink_to("mine.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan_search, "best_search", None)  # refused before anything is searched
    for out in (*texts, "link.yaml", str(tmp_path / "of" / ".." / "mine.yaml")):
        code, _, told = call("search", "--model", "mine.yaml", "--nodes", "1", "--out", out)
        assert code == 2 and f"--out {out}: the search reads this file (--model mine.yaml," in told, told
    assert {name: (tmp_path / name).read_text() for name in texts} == texts


def test_a_winner_of_more_nodes_than_its_machine_has_is_not_written(call, tmp_path):
    """The preset would name the machine as it is, which has too few nodes to price the plan."""
    asked = ("search", "--model", "demo", "--machine", "workstation", "--out", str(tmp_path / "best.yaml"))
    code, _, told = call(*asked, "--nodes", "4")
    assert code == 2 and "workstation has 1, of which --nodes is 4; write a machine file" in " ".join(told.split())
    larger = tmp_path / "larger.yaml"
    larger.write_text("base: workstation\nnodes: 4\n")
    assert call(*asked, "--machine", str(larger))[0] == 0
    assert call("show", "--preset", str(tmp_path / "best.yaml"))[0] == 0


@pytest.mark.parametrize("field", ["tensor", "context", "micro", "chunks", "shards"])
def test_choices_beyond_what_a_plan_may_have_are_refused(call, field):
    code, _, told = call("search", "--model", "demo", "--set", f"search.{field}=[9223372036854775807]")
    assert code == 2 and f"search.{field}.0" in told and "less than or equal to 1000000" in told


def test_a_winner_stays_compiled_and_is_recorded_where_that_may_be(call, tmp_path):
    mine, out = tmp_path / "mine.yaml", tmp_path / "winner.yaml"
    mine.write_text("base: demo\nmachine: selene\nplan: {compiled: true, cuda_graphs: true}")
    asked = ("search", "--model", str(mine), "--nodes", "1", "--ranks", "2", "--out", str(out))
    both = ("--set", "plan.compiled=true", "--set", "plan.cuda_graphs=true")  # and not without
    for zero, runs in ((1, "compiled and recorded as CUDA graphs"), (3, "compiled")):
        code, told, _ = call(*asked, *both, "--set", f"search.zero=[{zero}]", "--set", "search.tensor=[1]")
        plan = resolve(Given(str(out))).checked().plan
        assert code == 0 and plan.compiled and plan.cuda_graphs is (zero == 1)
        assert f"per rank; {runs}; the" in told.splitlines()[-1]


def test_a_ramp_that_the_winner_cannot_keep_is_left_out_and_that_is_said(call, tmp_path):
    asked = (*MT_NLG[:-1], "1960", "--schedules", "interleaved", "--set", "search.pipeline=[35]")
    code, _, told = call("search", *asked, "--out", str(tmp_path / "winner.yaml"))
    assert code == 0 and "plan.batch.ramp is left out: plan.batch.ramp" in told, told
    plan = resolve(Given(str(tmp_path / "winner.yaml"))).checked().plan
    assert (plan.schedule, plan.batch.sequences, plan.batch.ramp) == ("interleaved", 1960, None)


def test_a_search_for_this_machine_takes_the_ranks_of_the_config(call):
    code, out, _ = call("search", "--model", "demo", "--top", "2", "--json")
    assert code == 0 and json.loads(out)["winners"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--model", "mt-nlg-530"), "did you mean 'mt-nlg-530b'?"),
        (("--model", "mt-nlg-530b", "--machine", "selena"), "did you mean 'selene'?"),
        ((*MT_NLG[:4], "--nodes", "2"), ("too much", "nodes (")),
        ((*MT_NLG, "--ranks", "999999"), "999999 ranks"),
        ((*MT_NLG, "--schedules", "zb-h2"), "zb-h2"),
        ((*MT_NLG[:4], "--nodes", "281"), ("no layout of 2248 ranks is legal", "nearest legal batch: 1,686 or 1,967")),
        ((*MT_NLG, "--set", "plan.layout.tensor=4"), "--set plan.layout.tensor=4: a search takes only plan.model"),
        ((*MT_NLG, "--set", "plan.batch.sequences=960"), "'plan.batch.sequences' is given twice (960 and 1920)"),
        ((*MT_NLG, "--set", "machine=eos"), "'machine' is given twice (eos"),
        ((*MT_NLG, "--set", "search.zerro=[1]"), "search.zerro: there is no such key; did you mean 'zero'?"),
        ((*MT_NLG, "--set", "search.zero=1"), "search.zero is 1; it must be a list: write [1]"),
        ((*MT_NLG, "--set", "search.micro=[2,2]"), "name each choice once; 2"),
        (
            (*MT_NLG, "--set", "search.data=[9]"),
            "multiply to 2240 ranks: search.pipeline any x search.data [9] x search.context [1, 2, 4, 8] x",
        ),
        ((*MT_NLG, "--schedules", "1f1b", "--set", "search.schedules=[zb-v]"), "'search.schedules' is given twice"),
        (
            (*MT_NLG, "--set", "search.tensor=[1]", "--set", "search.zero=[0]", "--set", "search.offload=[0]"),
            "another degree of tensor would fit",
        ),
        ((*MT_NLG, "--out", "winner.json"), "end it in .yaml"),
    ],
)
def test_bad_input_is_refused_with_the_remedy(call, words, expected):
    code, _, err = call("search", *words)
    assert code == 2 and all(each in err for each in ([expected] if isinstance(expected, str) else expected))


H100 = ("--machine", "dgx-h100", "--set", "search.schedules=[1f1b]", "--set", "search.context=[1]")
FEW = (*H100, "--set", "search.recompute=[layer]", "--set", "search.micro=[1]", "--set", "search.finalists=2")


@pytest.mark.parametrize(
    ("model", "few", "fraction"),
    [
        ("mixtral-8x7b", ("--ranks", "2"), 0.92),  # less than a node
        ("llama-3-70b", ("--ranks", "12", "--set", "search.offload=[0]"), 0.3),  # a node and a half
        # Five nodes are enough only if the layers, which differ, are priced as their mean.
        ("deepseek-v2-lite", ("--nodes", "1", "--set", "search.offload=[0]"), 0.096),
    ],
)
def test_the_nodes_of_a_refusal_are_enough_and_one_less_is_not(call, model: str, few: tuple[str, ...], fraction: float):
    asked = ("search", "--model", model, *FEW, *few[2:], "--set", f"search.memory_fraction={fraction}")
    code, _, told = call(*asked, *few[:2])
    assert code == 2
    nodes = int(re.search(r"; (\d+) nodes? \(", told)[1])
    assert call(*asked, "--nodes", str(nodes))[0] == 0
    assert nodes == 1 or call(*asked, "--nodes", str(nodes - 1))[0] == 2


def test_the_smallest_plan_of_a_refusal_is_the_first_to_fit_in_more_memory(call):
    fraction, asked = 0.25, ("search", "--model", "llama-3-8b", "--ranks", "2", *FEW)
    code, _, told = call(*asked, "--set", f"search.memory_fraction={fraction}")
    assert code == 2 and "100% of state on the host, 100% of activations on the host) holds" in told
    limit, held = (float(re.search(rf"{word} ([\d.]+) GiB", told)[1]) for word in ("may hold", "holds"))
    assert held > limit > 1
    for more, expected in ((0.99, 2), (1.01, 0)):
        assert call(*asked, "--set", f"search.memory_fraction={fraction * more * held / limit:.5f}")[0] == expected


def test_a_place_that_cannot_be_written_is_refused_before_the_search(call, tmp_path, monkeypatch):
    monkeypatch.setattr(plan_search, "best_search", None)
    code, _, told = call("search", *MT_NLG, "--out", str(tmp_path / "none" / "winner.yaml"))
    assert code == 4 and "does not exist; create it first" in told


def test_a_model_too_small_for_a_whole_machine_is_told_to_take_less_of_it(call):
    code, _, told = call("search", "--model", "gpt-125m")
    assert code == 2 and "give --nodes or --ranks for fewer" in told


@pytest.mark.parametrize(
    ("option", "name", "most"),
    [("--ranks", "--ranks", MAX_PLAN_RANKS), ("--batch", "plan.batch.sequences", MAX_SEQUENCES)],
)
def test_a_search_is_of_no_more_than_a_plan_may_have(call, option: str, name: str, most: int) -> None:
    code, _, told = call("search", "--model", "demo", option, str(most + 1))
    assert code == 2 and name in told and str(most) in told.replace(str(most + 1), "")


def test_a_winner_that_recomputes_names_the_search_with_shares_on_the_host_and_that_finds_a_faster_plan(call):
    asked = ("search", "--model", "llama-3-8b", "--machine", "dgx-a100-40", "--ranks", "4")
    found = {}
    for words in ((), ("--set", "search.offload=[0,0.5,1]")):
        _, out, _ = call(*asked, *words)
        found[words] = json.loads(call(*asked, *words, "--json")[1])["chosen"]
        assert ("--set 'search.offload=[0,0.5,1]'" in out) == (not words)
    without, with_shares = found.values()
    assert with_shares["offload"]["optimizer"] and with_shares["seconds"] < 0.9 * without["seconds"]
