"""--gpus lets the planner choose the layout, which the run's config keeps."""

from pathlib import Path

import pytest

from trivium.cli import planned as planning
from trivium.cli.planned import planned
from trivium.cli.price import machine_of
from trivium.cli.run_config import Given, resolve
from trivium.config import to_tree
from trivium.cost.estimate import estimate
from trivium.errors import ConfigError
from trivium.plan.layout import Layout
from trivium.planner.this_host import Host
from trivium.provenance import write_json
from trivium.units import format_seconds

QUICK = ("search.schedules=[1f1b]", "search.finalists=4", "search.micro=[1]", "search.context=[1]")


@pytest.fixture
def told(monkeypatch) -> list[str]:
    """Collect the messages on a host that has a GPU."""
    monkeypatch.setattr(planning, "host_found", lambda: Host(2, 1 << 30, (("NVIDIA H100", 80 << 30),)))
    return []


def test_the_planner_chooses_a_layout_for_so_many_gpus_and_says_why_in_one_line(told) -> None:
    config = resolve(planned(Given("llama-3-8b", QUICK), 64, None, told.append)).checked()
    assert config.plan.layout.world_size == 64 and config.machine == "dgx-h100"
    assert config.plan.compiled and config.tokens.tokenizer == "hf:meta-llama/Meta-Llama-3-8B"
    assert len(told) == 1 and told[0].startswith("layout for 64 GPUs of dgx-h100: tensor ")
    assert "plans that fit, compute" in told[0]


@pytest.mark.parametrize(("sets", "says"), [((), True), (("machine=dgx-h100",), False), (("machine=here",), False)])
def test_a_host_without_gpus_says_for_which_machine_it_plans(told, monkeypatch, sets, says) -> None:
    monkeypatch.setattr(planning, "host_found", lambda: Host(2, 1 << 30))
    planned(Given("gpt2", (*QUICK, *sets)), 1, None, told.append)
    line = "this host has no GPU: the layout is planned for dgx-h100 (--machine names another)"
    assert (told[0] == line) is says and len(told) == 1 + says


def test_one_gpu_is_not_plural(told) -> None:
    planned(Given("gpt2", QUICK), 1, None, told.append)
    assert told[0].startswith("layout for 1 GPU of ")


def test_what_the_user_sets_holds_and_the_search_keeps_to_it(told) -> None:
    sets = (*QUICK, "plan.layout.tensor=4", "plan.zero=0", "plan.compiled=false", "machine=selene")
    plan = resolve(planned(Given("llama-3-8b", sets), 16, None, told.append)).checked().plan
    assert plan.layout.tensor == 4 and plan.layout.world_size == 16 and plan.zero == 0 and not plan.compiled


@pytest.mark.parametrize("stated", [{}, {"optimizer": 1.0}, {"activations": 1.0}], ids=str)
def test_a_layout_that_needs_the_host_is_written_with_its_offload(
    told, tmp_path: Path, stated: dict[str, float]
) -> None:
    (tmp_path / "small.yaml").write_text("base: workstation\nname: small\nmemory_bytes: 12000000000\n")
    sets = (*QUICK, f"machine={tmp_path}/small.yaml", *(f"plan.offload.{name}={n}" for name, n in stated.items()))
    config = resolve(planned(Given("gpt-1.3b", sets), 1, None, told.append)).checked()
    assert config.plan.offload.is_used and stated.items() <= to_tree(config.plan.offload).items()
    price = estimate(config.plan, machine_of(config.machine))
    assert price.fits and told[0].count(f"{config.plan.offload.words};") == 1
    assert f": {format_seconds(price.seconds)}, " in told[0], "the plan is priced with the offload that it has"


def test_a_stated_false_keeps_activation_functions_out_of_the_search(told, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text("base: workstation\nname: small\nmemory_bytes: 29000000000\n")
    sets = (*QUICK, f"machine={tmp_path}/small.yaml")
    free, kept = (
        resolve(planned(Given("gpt-1.3b", (*sets, *more)), 1, None, told.append)).checked()
        for more in ((), ("plan.recompute.activation_function=false",))
    )
    assert free.plan.recompute.activation_function and not kept.plan.recompute.activation_function
    assert estimate(kept.plan, machine_of(kept.machine)).fits


@pytest.mark.parametrize(("setting", "expert"), [("search.expert=[1]", 1), ("plan.layout.expert=4", 4)])
def test_the_degree_of_expert_parallelism_is_that_of_the_search(told, setting: str, expert: int) -> None:
    batch = ("plan.model.sequence=4096", "plan.batch.sequences=256")
    given = planned(Given("mixtral-8x7b", (*QUICK, *batch, setting)), 64, None, told.append)
    assert resolve(given).checked().plan.layout.expert == expert
    assert (f", expert {expert}," in told[0]) is (expert > 1)


def test_a_run_that_was_planned_keeps_its_layout(told, tmp_path: Path) -> None:
    first = resolve(planned(Given("llama-3-8b", QUICK), 16, tmp_path, told.append))
    layout = Layout(tensor=8, data=2)
    assert first.plan.layout != layout
    other = first.plan.model_copy(update={"layout": layout})
    write_json(tmp_path / "config.json", to_tree(first.model_copy(update={"plan": other})))
    again = planned(Given("llama-3-8b", QUICK), 16, tmp_path, told.append)
    assert resolve(again).plan.layout == other.layout
    assert told[-1] == f"layout for 16 GPUs: that of the run in {tmp_path}"
    elsewhere = planned(Given("llama-3-8b", QUICK), 8, tmp_path, told.append)
    assert resolve(elsewhere).plan.layout.world_size == 8


def test_a_ramp_that_the_layout_does_not_divide_is_left_out_and_said(told) -> None:
    sets = (*QUICK, "plan.model.layers=8", "plan.model.hidden=2048", "plan.model.heads=16", "plan.layout.data=64")
    config = resolve(planned(Given("mt-nlg-530b", sets), 64, None, told.append)).checked()
    assert config.plan.batch.ramp is None and told[-1].startswith("plan.batch.ramp is left out: ")


@pytest.mark.parametrize(
    ("given", "gpus", "told_of"),
    [
        (Given("llama-3-405b", QUICK), 8, "--gpus 8: none of .* legal plans fits on dgx-h100"),
        (Given("llama-3-8b", QUICK), 9999, "9999 ranks but dgx-h100 has 1024 devices"),
        (Given("llama-3-8b", (*QUICK, "machine=h1000")), 8, "there is no machine 'h1000'"),
        (Given("demo", (), 8), 8, "--gpus 8: --ranks 8 uses a predefined layout, and --gpus would choose one; give"),
    ],
    ids=["too large", "too many", "machine", "ranks"],
)
def test_what_cannot_be_planned_is_refused(given, gpus, told_of) -> None:
    with pytest.raises(ConfigError, match=told_of):
        resolve(planned(given, gpus, None)).checked()


@pytest.mark.parametrize(
    "settings",
    [
        ("plan.layout.pipeline=2", "plan.layout.tensor=2", "plan.layout.order=[tensor,data,context,pipeline]"),
        ("plan.recompute.mode=attention", "plan.recompute.every=3"),
        ("plan.layout.context=4", "plan.context_attention=ulysses"),
    ],
    ids=lambda settings: settings[-1].partition("=")[0],
)
def test_what_the_search_does_not_vary_is_in_the_price_that_is_told(told, settings: tuple[str, ...]) -> None:
    config = resolve(planned(Given("llama-3-8b", (*QUICK[:2], *settings)), 16, None, told.append)).checked()
    price = estimate(config.plan, machine_of(config.machine))
    assert price.fits and f": {format_seconds(price.seconds)}, " in told[0]
    assert f"with {settings[-1].partition('=')[0]} as set, which the search did not vary" in told[0]


def test_a_layout_that_does_not_fit_with_what_is_set_is_refused(told) -> None:
    sets = (*QUICK, "plan.layout.pipeline=2", "plan.layout.data=1", "plan.partition.layers=[2,30]")
    with pytest.raises(ConfigError, match="does not vary plan.partition.layers, .* found does not fit: a rank needs"):
        planned(Given("llama-3-8b", (*sets, "plan.layout.tensor=2")), 4, None, told.append)


@pytest.mark.parametrize("setting", ["plan.cuda_graphs=true", "plan.layout.chunks=2"])
def test_only_layouts_that_allow_what_is_set_are_searched(told, setting: str) -> None:
    quick = ("search.finalists=4", "search.micro=[1]", "search.context=[1]")
    config = resolve(planned(Given("llama-3-8b", (*quick, setting)), 16, None, told.append)).checked()
    assert config.plan.cuda_graphs or config.plan.layout.chunks == 2


def test_settings_that_no_layout_allows_are_named(told) -> None:
    sets = (*QUICK, "plan.layout.chunks=2", "plan.schedule=1f1b")
    with pytest.raises(ConfigError, match="plan.layout.chunks is 2 but plan.schedule is '1f1b'"):
        planned(Given("llama-3-8b", sets), 8, None, told.append)


def test_the_order_of_ranks_of_a_config_does_not_stay_with_another_layout(told, tmp_path: Path) -> None:
    order = "[tensor, data, context, pipeline]"
    text = f"base: llama-3-8b\nplan:\n  layout: {{tensor: 2, pipeline: 2, data: 2, order: {order}}}\n"
    (tmp_path / "own.yaml").write_text(text)
    plan = resolve(planned(Given(str(tmp_path / "own.yaml"), QUICK), 16, None, told.append)).checked().plan
    assert plan.layout.order == Layout().order
