"""`import trivium` is fast, has the names of docs/python.md, and the examples of that page run."""

import ast
import importlib.util
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import trivium
from trivium.errors import ConfigError
from trivium.tokens.shards import ShardWriter
from trivium.tokens.tokenizer import train_tokenizer

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "python.md").read_text("utf-8")
EXAMPLES = {
    next(line for line in reversed(before.splitlines()) if line.startswith("## "))[3:] + f" {number}": code
    for number, (before, code) in enumerate(
        (PAGE[: found.start()], found[1]) for found in re.finditer(r"```python\n(.*?)```", PAGE, re.DOTALL)
    )
}
WITHOUT_TORCH = "Plan, ModelShape, Layout, Batch, Precision, Recompute, Machine, machine_named, machine_from_file, " + (
    "estimate, Estimate, search, Subject, SearchSpace, TokenDataset, TokenShard, load_tokenizer, "
    "TriviumError, ConfigError, MachineError, DataError, CheckpointError"
)


def modules_after(code: str) -> set[str]:
    """Return the modules that a new process has imported after running `code`."""
    told = "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code + told], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_trivium_imports_nothing_else():
    found = modules_after("import trivium; trivium.__version__; dir(trivium)")
    assert {m for m in found if m.startswith("trivium.")} == set()
    assert not found & {"torch", "numpy", "pydantic", "yaml"}


def test_planning_imports_no_torch():
    assert "torch" not in modules_after(f"from trivium import {WITHOUT_TORCH}")


def test_training_and_reading_import_no_compiler():
    """The compiler takes 60 MiB per rank, and is imported only if a plan uses it."""
    found = modules_after("import trivium.training.loop, trivium.model.generate")
    assert "torch" in found and "torch._dynamo" not in found


def test_names_are_found_at_run_time_and_by_type_checkers():
    tree = ast.parse(Path(trivium.__file__).read_text("utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    told = {
        alias.asname: f"{node.module}.{alias.name}"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert told == {name: f"trivium.{home}.{name}" for name, home in trivium._HOMES.items()}
    # visible to a type checker, it would make every misspelt name valid
    assert "__getattr__" not in {getattr(node, "name", None) for node in tree.body}
    assert set(trivium.__all__) == {*told, "__version__"} <= set(dir(trivium))
    for name in told:
        assert getattr(trivium, name).__name__ == name


def test_docs_list_every_name():
    table = PAGE.partition("| what a run is |")[2].partition("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", table)) == set(trivium.__all__) - {"__version__"}


def test_missing_name_is_reported():
    with pytest.raises(AttributeError, match="'trivium' has no attribute 'Plann'"):
        trivium.Plann  # noqa: B018
    assert "trivium.cost" in modules_after("from trivium import cost")  # subpackages are still found


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_of_the_docs_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = EXAMPLES[name]
    if "transformers" in code and importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    monkeypatch.chdir(tmp_path)
    if "runs/demo" in code:
        leave_a_run(tmp_path / "runs" / "demo")
    exec(compile(code, f"docs/python.md: {name}", "exec"), {"__name__": "__main__"})


def leave_a_run(run: Path) -> None:
    """Create what `make demo` leaves, as far as a model needs it to answer."""
    from evaluation.models import plan_of, write_checkpoint

    for folder in ("training", "tokens"):
        (run / folder).mkdir(parents=True)
    write_checkpoint(run / "training", plan_of())
    (run / "training" / "tokenizer.json").rename(run / "tokens" / "tokenizer.json")


def test_preset_gives_plan_with_overrides():
    plan = trivium.Plan.from_preset("gpt-1.3b", "layout.tensor=2", "layout.data=16")
    assert (plan.model.layers, plan.layout.tensor, plan.layout.data) == (24, 2, 16)
    with pytest.raises(ConfigError, match="layout.tensr"):
        trivium.Plan.from_preset("gpt-1.3b", "layout.tensr=2")
    with pytest.raises(ConfigError, match="no preset 'gpt-9'"):
        trivium.Plan.from_preset("gpt-9")


SHAPE = {"layers": 1, "hidden": 8, "heads": 2, "vocabulary": 10, "sequence": 4}


def test_array_windows_predict_each_token_once_and_repeat():
    plan = trivium.Plan(model=SHAPE, batch={"sequences": 2})
    ids = np.arange(1, 10, dtype=np.uint16)  # two windows
    first, second = (trivium.Samples.of_ids(ids, plan, step) for step in (0, 1))
    assert (first.first, second.first, second.sequences) == (0, 2, 2)
    rows = first.read(0, 3)
    assert rows.tokens.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8], [1, 2, 3, 4]]
    assert rows.targets.tolist() == [[2, 3, 4, 5], [6, 7, 8, 9], [2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (np.arange(4), r"shape \(4,\); give one row of at least plan.model.sequence \+ 1 \(5\)"),
        (np.ones((5, 5)), r"shape \(5, 5\)"),
        (np.arange(6, 12), "from 6 to 10, and plan.model.vocabulary is 10"),
        (np.arange(-1, 9), "from -1 to 3"),
    ],
)
def test_untrainable_array_is_rejected(ids: np.ndarray, told: str):
    plan = trivium.Plan(model=SHAPE, batch={"sequences": 1})
    with pytest.raises(trivium.DataError, match=told):
        trivium.Samples.of_ids(ids, plan, 0).read(0, 1)


def test_megatron_pair_is_an_array(tmp_path: Path):
    writer = ShardWriter(tmp_path / "my_text_document", dtype="uint16")
    writer.append(np.arange(9), np.array([4, 5]))
    writer.close()
    ids = trivium.TokenShard.open(tmp_path / "my_text_document").tokens
    plan = trivium.Plan(model=SHAPE, batch={"sequences": 1})
    assert trivium.Samples.of_ids(ids, plan, 1).read(1, 1).targets.tolist() == [[5, 6, 7, 8]]


def test_saved_state_continues_identically(tmp_path: Path):
    from trivium import AdamRule, Checkpoint, Mesh, Plan, Samples, Trainer, published, restore, save_state

    plan = Plan(model=SHAPE, batch={"sequences": 2})
    ids = np.arange(1, 100) % 10
    trainers = [Trainer(plan, Mesh.single(), seed=seed, rule=AdamRule()) for seed in (1, 1)]

    def steps(trainer: Trainer, first: int) -> list[float]:
        return [trainer.train_step(n, Samples.of_ids(ids, plan, n), 1e-2).loss for n in range(first, first + 3)]

    steps(trainers[0], 0)
    path = save_state(trainers[0], tmp_path, 3)
    assert published(tmp_path) == [path]
    found = Checkpoint.open(path)
    found.verify()
    told = [found.manifest[name] for name in ("step", "samples", "tokens_seen", "seed")]
    assert told == [3, 6, 24, 1]
    restore(trainers[1], found)
    assert steps(trainers[1], 3) == steps(trainers[0], 3)


@pytest.mark.parametrize("layout", [{"data": 2}, {"context": 2}, {"tensor": 2}, {"pipeline": 2}])
def test_mesh_of_other_layout_is_rejected(layout: dict[str, int]):
    """A process would do only its share of the plan: half of the batch and half of its loss."""
    plan = trivium.Plan(model=SHAPE | {"layers": 2}, layout=layout, batch={"sequences": 2}).checked()
    (axis,) = layout
    with pytest.raises(ConfigError, match=rf"plan\.layout\.{axis} is 2, and the mesh was connected for 1"):
        trivium.Trainer(plan, trivium.Mesh.single(), seed=1, rule=trivium.AdamRule())


def test_mesh_of_other_end_token_is_rejected():
    mesh = trivium.Mesh.single()
    mesh.refuse_other(trivium.Layout(), (0,))
    with pytest.raises(ConfigError, match=r"other ends .*pipeline ranks \[0, 1\].*ends=plan\.ends"):
        replace(mesh, pipeline=replace(mesh.pipeline, ranks=(0, 1))).refuse_other(trivium.Layout(), (0, 1))


def test_path_may_be_a_string(tmp_path: Path):
    from trivium import (
        AdamRule,
        Checkpoint,
        Mesh,
        NativeScorer,
        Plan,
        TokenDataset,
        TokenShard,
        Trainer,
        export_hf,
        import_hf,
        load_tokenizer,
        machine_from_file,
        published,
        save_state,
    )

    root = str(tmp_path)
    Path(root, "here.yaml").write_text("base: selene\nname: here\n", "utf-8")
    assert machine_from_file(f"{root}/here.yaml").name == "here"
    train_tokenizer(["some words"] * 3, 260).save(tmp_path / "tokenizer.json")
    words = load_tokenizer(f"{root}/tokenizer.json")
    plan = Plan(model=SHAPE | {"vocabulary": words.vocabulary}, batch={"sequences": 1})
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=AdamRule())
    path = str(save_state(trainer, f"{root}/checkpoints", 1))
    assert [str(found) for found in published(f"{root}/checkpoints")] == [path]
    opened = Checkpoint.open_together(path, trainer.mesh)
    assert opened == Checkpoint.open(path)
    assert NativeScorer.open(path, f"{root}/tokenizer.json").sequence == 4
    folder = str(export_hf(opened, f"{root}/theirs", tokenizer=f"{root}/tokenizer.json").folder)
    assert import_hf(folder, f"{root}/imported").parent == tmp_path / "imported"
    for asked in (
        lambda: TokenShard.open(f"{root}/none"),
        lambda: TokenDataset.open(root, "train", sequence=4, seed=1),
    ):
        with pytest.raises(trivium.DataError, match=root):
            asked()
    job = trivium.TrainingJob(plan, trivium.TrainingConfig(steps=1), 1, root, f"{root}/run")
    with pytest.raises(trivium.DataError, match=f"{root} holds no tokens"):
        trivium.start(job)


def test_search_for_empty_step_is_rejected():
    subject = trivium.Subject(trivium.ModelShape(**SHAPE), 0, trivium.Precision())
    with pytest.raises(ConfigError, match="a step of 0 sequences trains on nothing; give 1 or more"):
        trivium.search(subject, trivium.machine_named("selene"), ranks=8)


@pytest.mark.parametrize("lr", [float("nan"), float("inf"), -1e-3])
def test_destructive_learning_rate_is_rejected(lr: float):
    plan = trivium.Plan(model=SHAPE, batch={"sequences": 2})
    ids = np.arange(1, 100) % 10
    trainer = trivium.Trainer(plan, trivium.Mesh.single(), seed=1, rule=trivium.AdamRule())
    with pytest.raises(ConfigError, match=r"lr is (nan|inf|-0\.001)"):
        trainer.train_step(0, trivium.Samples.of_ids(ids, plan, 0), lr)
    assert trainer.validate(trivium.Samples.of_ids(ids, plan, 0))["loss"] > 0


def test_impossible_requests_are_rejected(tmp_path: Path):
    from trivium import AdamRule, Drawing, Mesh, NativeScorer, Plan, Trainer, Writer, save_state

    train_tokenizer(["some words"] * 3, 260).save(tmp_path / "tokenizer.json")
    plan = Plan(model=SHAPE | {"vocabulary": 260}, batch={"sequences": 1})
    path = save_state(Trainer(plan, Mesh.single(), seed=1, rule=AdamRule()), tmp_path, 1)
    scorer = NativeScorer.open(path, tmp_path / "tokenizer.json")
    assert scorer.model.logits([[1, 2, 259], [3]]).shape[:2] == (2, 3)
    for rows, told in (
        ([], "the longest row has 0 ids; give rows of 1 to 4"),
        ([[1] * 5], "the longest row has 5 ids; give rows of 1 to 4"),
        ([[1, 260]], "ids reach from 1 to 260, and the model's vocabulary is 0 to 259"),
        ([[-1]], "ids reach from -1 to -1"),
    ):
        with pytest.raises(trivium.DataError, match=told):
            scorer.model.logits(rows)
    with pytest.raises(trivium.DataError, match="'The' is one text, and a list of texts is asked for"):
        Writer(scorer).write("The", Drawing(max_tokens=1))
    with pytest.raises(trivium.DataError, match="is one text"):
        scorer.loglikelihood_rolling("some words")
