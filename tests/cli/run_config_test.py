"""Laws of a run's config: presets are legal, origins are shown, contradictions between sections are found."""

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import get_args

import pytest
import typer
import yaml

from trivium.cli.main import VERBS
from trivium.cli.price import machine_of
from trivium.cli.run_config import LAYOUTS, Given, RunConfig, origins, resolve
from trivium.cli.stage import Run
from trivium.cli.tokenize import check_vocabulary
from trivium.cli.workspace import Workspace
from trivium.config import leaves, preset_names, to_tree
from trivium.errors import ConfigError
from trivium.plan.parameters import count
from trivium.planner.published import mt_nlg_plan


@pytest.mark.parametrize("name", preset_names())
def test_every_shipped_preset_is_free_of_contradictions(name: str):
    assert resolve(Given(name)).problems() == []


@pytest.mark.parametrize("ranks", LAYOUTS)
def test_every_ready_layout_is_legal_for_the_demo_and_has_its_ranks(ranks: int):
    config = resolve(Given("demo", ranks=ranks))
    assert config.problems(ranks) == []
    assert config.plan.layout.world_size == ranks


@pytest.mark.parametrize("ranks", LAYOUTS)
@pytest.mark.parametrize(
    "own",
    [
        {"layout": {"tensor": 1, "pipeline": 1, "data": 4, "context": 2, "chunks": 1, "shards": 4}, "schedule": "1f1b"},
        {"layout": {"tensor": 1, "pipeline": 1, "chunks": 1, "order": ["data"]}, "schedule": "1f1b"},
        {"layout": {"data": 3}, "partition": {"layers": [1, 3, 2, 2]}},
        {"layout": {"tensor": 1, "pipeline": 1, "data": 1, "chunks": 1}, "batch": {"sequences": 16, "micro": 2},
         "schedule": "given", "rows": [" ".join(f"F{m}.0 B{m}.0" for m in range(8))]},
    ],
)  # fmt: skip
def test_a_ready_layout_has_its_ranks_whatever_those_of_the_preset_are(own, ranks: int, tmp_path: Path):
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"base": "demo", "plan": own}))
    chosen, usual = (resolve(Given(preset, ranks=ranks)).plan for preset in (str(path), "demo"))
    assert chosen.check(ranks) == []
    assert (chosen.layout, chosen.schedule, chosen.stages_by_rank) == (
        usual.layout, usual.schedule, usual.stages_by_rank
    )  # fmt: skip


def test_the_demo_is_the_layout_of_the_issue():
    layout = resolve(Given("demo")).plan.layout
    assert (layout.tensor, layout.pipeline, layout.data, layout.chunks) == (2, 2, 2, 2)
    assert resolve(Given("demo", ranks=8)).plan == resolve(Given("demo")).plan


def test_the_preset_of_mt_nlg_is_the_plan_that_is_compared_with_the_paper():
    plan = resolve(Given("mt-nlg-530b")).plan
    assert plan.model_copy(update={"batch": plan.batch.model_copy(update={"ramp": None})}) == mt_nlg_plan()
    assert count(plan.model) == pytest.approx(529.6e9, rel=0.001)


def test_the_ramp_of_mt_nlg_ends_after_twelve_billion_tokens():
    plan = resolve(Given("mt-nlg-530b")).plan
    full = plan.batch.segments[-1]
    assert full.sequences == 1920
    assert plan.tokens(full.first_sample) == pytest.approx(12e9, rel=0.001)


def test_the_steps_of_mt_nlg_are_270_billion_tokens():
    config = resolve(Given("mt-nlg-530b"))
    samples = config.plan.batch.at(config.training.steps).first_sample
    assert config.plan.tokens(samples) == pytest.approx(270e9, rel=0.001)


def test_every_value_tells_where_it_came_from():
    found = origins(Given("demo", ("training.lr=0.001", "plan.batch.ramp=null"), ranks=4))
    assert found["training.lr"] == "--set"
    assert found["plan.batch.ramp"] == "--set"
    assert found["plan.layout.data"] == "--ranks 4"
    assert found["plan.model.hidden"] == "preset demo"
    assert found["plan.model.dropout"] == "default"
    assert found.keys() == dict(leaves(to_tree(resolve(Given("demo", ("plan.batch.ramp=null",)))))).keys()


def test_ranks_without_a_ready_layout_are_refused_with_settings_that_work():
    with pytest.raises(ConfigError) as caught:
        resolve(Given("demo", ranks=2))
    (data,) = re.findall(r"for 2, give --ranks 1 --set (\S+), or", str(caught.value))
    assert resolve(Given("demo", (data,), ranks=1)).checked().plan.layout.world_size == 2


def test_an_override_beats_ranks_and_ranks_beat_the_preset():
    given = Given("demo", ("plan.layout.data=1", "plan.layout.tensor=1"), ranks=8)
    assert resolve(given).plan.layout.world_size == 2


@pytest.mark.parametrize(
    ("rows", "tokenizer", "fits"), [(512, "x", True), (300, "x", True), (299, "x", False), (512, "null", False)]
)
def test_only_a_tokenizer_from_elsewhere_may_have_fewer_ids_than_the_model_has_rows(rows, tokenizer, fits):
    fields = (f"plan.model.vocabulary={rows}", "tokens.vocabulary=300", f"tokens.tokenizer={tokenizer}")
    run = Run(resolve(Given("demo", fields)), Workspace(Path("nowhere")))
    assert (run.config.problems() == []) == fits
    if fits:
        check_vocabulary(run, 300)
    else:
        with pytest.raises(ConfigError, match="plan.model.vocabulary"):
            check_vocabulary(run, 300)


def test_vocabularies_that_differ_are_refused_with_both_values():
    problems = resolve(Given("demo", ("tokens.vocabulary=4096",))).problems()
    assert len(problems) == 1 and "4096" in problems[0] and "2048" in problems[0]


def test_an_unknown_machine_is_refused_with_the_known_ones():
    problems = resolve(Given("demo", ("machine=selen",))).problems()
    assert problems == ["machine: there is no machine 'selen'; did you mean 'selene'?"]


def test_the_tokenizer_has_the_ids_of_the_model_where_nothing_else_is_said(tmp_path):
    for written in ("512", "5.12e2"):
        config = resolve(Given("demo", (f"plan.model.vocabulary={written}",)))
        assert config.tokens.vocabulary == config.plan.model.vocabulary == 512
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: mt-nlg-530b\nplan: {model: {vocabulary: 128256}}")
    config = resolve(Given(str(mine)))
    assert config.tokens.vocabulary == 128256 and config.problems() == []
    both = Given(str(mine), ("plan.model.vocabulary=512", "tokens.vocabulary=500"))
    assert resolve(both).tokens.vocabulary == 500


def test_a_machine_file_is_found_beside_the_config_that_names_it_and_one_that_is_missing_is_a_problem(tmp_path):
    (tmp_path / "ours.yaml").write_text("base: dgx-h100\ndevices_per_node: 4")
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: mt-nlg-530b\nmachine: ours.yaml")
    config = resolve(Given(str(mine)))
    assert config.problems() == [] and machine_of(config.machine).devices_per_node == 4
    (problem,) = resolve(Given("demo", ("machine=theirs.yaml",))).problems()
    assert "theirs.yaml" in problem and "there is no file" in problem


def test_files_that_an_inherited_config_names_are_found_beside_it(tmp_path):
    rows = ["F0.0 F1.0 B0.0 B1.0"]
    (tmp_path / "ours.yaml").write_text("base: dgx-h100")
    (tmp_path / "rows.txt").write_text("\n".join(rows))
    (tmp_path / "base.yaml").write_text("base: demo\nmachine: ours.yaml\nplan: {rows: rows.txt}")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "mine.yaml").write_text("base: ../base.yaml")
    (tmp_path / "sub" / "theirs.yaml").write_text("base: mine.yaml\nmachine: theirs.yaml")
    (tmp_path / "config.json").write_text('{"base": "base.yaml"}')
    for preset in ("base.yaml", "sub/mine.yaml", "."):
        config = resolve(Given(str(tmp_path / preset)))
        assert Path(config.machine).samefile(tmp_path / "ours.yaml") and list(config.plan.rows) == rows
    assert resolve(Given(str(tmp_path / "sub" / "theirs.yaml"))).machine == str(tmp_path / "sub/theirs.yaml")


def test_only_a_tokenizer_from_elsewhere_may_have_less_than_all_bytes():
    fields = ("plan.model.vocabulary=65", "tokens.vocabulary=65")
    (problem,) = resolve(Given("demo", fields)).problems()
    assert problem.startswith("tokens.vocabulary (65) must be 257 or more")
    given = ("plan.model.vocabulary=65", "tokens.tokenizer=letters.json")
    assert resolve(Given("demo", given)).problems() == []


@pytest.mark.parametrize("actions", [1, 1000])
def test_rows_in_the_place_of_their_file_are_refused(actions):
    with pytest.raises(ConfigError, match="plan.rows: .*F0.0 .*cannot be read as text"):
        resolve(Given("demo", (f"plan.rows={'F0.0 ' * actions}",)))


def test_a_run_directory_stands_for_its_config(tmp_path):
    (tmp_path / "config.json").write_text('{"base": "demo", "seed": 77}')
    assert resolve(Given(str(tmp_path))).seed == 77
    with pytest.raises(ConfigError, match="--preset NAME starts afresh"):
        resolve(Given(str(tmp_path), ("seed=-1",)))


def test_what_is_wrong_in_a_file_is_said_with_its_name(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: nowhere")
    with pytest.raises(ConfigError, match="mine.yaml, base: there is no preset 'nowhere'"):
        resolve(Given(str(mine)))
    mine.write_text("base: demo\nseed: -1")
    with pytest.raises(ConfigError, match="come from .*mine.yaml"):
        resolve(Given(str(mine)))


def test_every_problem_of_every_section_is_reported_at_once():
    wrong = ("plan.layout.tensor=3", "tokens.vocabulary=4096", "machine=x", "training.decay=wsd")
    given = Given("demo", wrong)
    with pytest.raises(ConfigError) as caught:
        resolve(given).checked()
    text = str(caught.value)
    assert all(word in text for word in ("plan.model.heads", "tokens.vocabulary", "machine", "decay=wsd"))


def test_a_stored_config_says_so_when_it_no_longer_fits(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"plan": {"gone": 1}}))
    with pytest.raises(ConfigError, match="--preset NAME starts afresh"):
        resolve(Given(str(path)))


# Options that set no field of the config, although a field has the same name: the tokens of another folder; the
# model of a search; data, tasks, shots, items and checkpoints of benchmarks; method and epochs of `tune`, which decide
# several fields each.
ASKED = {"model", "tokens", "data", "tasks", "shots", "limit", "every", "method", "epochs", "hosts"}


def test_no_option_of_a_verb_with_a_config_duplicates_a_field():
    fields = {path.split(".")[-1] for path, _ in leaves(to_tree(resolve(Given("demo"))))}
    options = [o for verb in VERBS for o in _options(verb.module)]
    configured = [o for o in options if "set" in o]
    assert set().union(*configured) >= {"out", "preset", "set", "ranks", "dry-run", "redo"}
    assert {name.replace("-", "_") for o in configured for name in o} & fields <= ASKED


def test_every_section_of_a_run_is_a_config_of_its_package():
    sections = {name: field.annotation for name, field in RunConfig.model_fields.items()}
    modules = {a.__module__ for a in sections.values() if inspect.isclass(a) and hasattr(a, "model_fields")}
    assert modules >= {"trivium.plan.plan", "trivium.corpus.config", "trivium.training.config"}


def _options(module: str) -> list[set[str]]:
    """Return the option names of each command of a module."""
    command = typer.main.get_command(importlib.import_module(module).app)
    commands = [command, *getattr(command, "commands", {}).values()]
    return [{t.lstrip("-") for p in c.params for t in p.opts if t.startswith("-")} for c in commands]


ROOT = Path(__file__).parents[2]
PAGES = "".join(
    page.read_text("utf-8")
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"))
    if page.name not in ("architecture.md", "formats.md")  # these also name files, such as training.previous
)


def has(model: type, path: list[str]) -> bool:
    """Return whether a config has a field at this path."""
    if not path:
        return True
    field = getattr(model, "model_fields", {}).get(path[0])
    if field is None:
        return False
    return any(has(kind, path[1:]) for kind in (field.annotation, *get_args(field.annotation)))


def test_every_field_that_the_pages_name_is_one():
    sections = "|".join(RunConfig.model_fields)
    named = set(re.findall(rf"(?:`|--set )((?:{sections})\.[a-z0-9_.]*[a-z0-9_])", PAGES))
    assert len(named) > 50
    assert {name for name in named if not has(RunConfig, name.split("."))} == set()


def test_a_value_in_a_section_s_place_is_refused_in_plain_words():
    for path in ("plan", "plan.batch.ramp", "tokens"):
        with pytest.raises(ConfigError, match=rf"^{path} is 3; it is a section: give its fields, as {path}\.FIELD"):
            resolve(Given("demo", (f"{path}=3",)))
    with pytest.raises(ConfigError) as caught:
        resolve(Given("demo", ("plan.model.vocabulary=big",)))
    assert len(str(caught.value).splitlines()) == 1


def test_number_of_ids_and_end_of_documents_follow_from_the_tokenizer_unless_given(tmp_path):
    mine = tmp_path / "mine.yaml"
    mine.write_text("base: demo\ntokens: {tokenizer: gpt2}\n")
    for given in (Given("demo", ("tokens.tokenizer=gpt2",)), Given(str(mine))):
        config = resolve(given).checked()
        assert config.tokens.tokenizer == "gpt2"
        assert config.tokens.vocabulary == config.plan.model.vocabulary == 50257
        assert config.plan.model.end_of_text == 50256
    padded = resolve(Given("demo", ("tokens.tokenizer=gpt2", "plan.model.vocabulary=50304"))).checked()
    assert (padded.tokens.vocabulary, padded.plan.model.vocabulary) == (50257, 50304)
    assert padded.plan.model.end_of_text == 50256
    stated = resolve(Given("demo", ("tokens.tokenizer=gpt2", "tokens.vocabulary=99")))
    assert stated.tokens.vocabulary == 99
