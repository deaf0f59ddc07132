"""A model may be named as a preset, a config, a run, a checkpoint, a Hugging Face folder or hf:ORG/NAME."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from evaluation.models import plan_of, write_checkpoint
from hub_test import FakeHub
from trivium.checkpoint.load import Checkpoint
from trivium.cli import hosts, train
from trivium.cli.imported import bring, with_weights
from trivium.cli.model_argument import asked_model, model_named
from trivium.cli.options import open_run
from trivium.cli.run_config import Given, resolve
from trivium.comms.launch import Place
from trivium.config import to_tree
from trivium.errors import ConfigError, DataError
from trivium.interchange.export import export_hf
from trivium.provenance import write_json
from trivium.training.supervision.agent import Agent
from trivium.training.supervision.rendezvous import Round


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """A run with one checkpoint, and the same model as a folder of Hugging Face."""
    root = tmp_path_factory.mktemp("named")
    (root / "run" / "training").mkdir(parents=True)
    newest = write_checkpoint(root / "run" / "training", plan_of("llama", sequence=96), step=4)
    export_hf(Checkpoint.open(newest), root / "hf", tokenizer=root / "run" / "training" / "tokenizer.json")
    return root


@pytest.fixture
def checkpoint(root: Path) -> Path:
    return root / "run" / "training" / "checkpoints" / "step-00000004"


def test_settings_of_a_checkpoint_and_a_folder_are_those_of_the_model(root: Path, checkpoint: Path) -> None:
    model = Checkpoint.open(checkpoint).plan.model
    of_folder = resolve(Given(str(root / "hf"))).checked()
    assert resolve(Given(str(checkpoint))).checked().plan.model == model
    assert of_folder.plan.model.of_weights() == model.of_weights()
    assert of_folder.tokens.tokenizer == str(root / "hf" / "tokenizer.json")
    assert of_folder.plan.layout.world_size == 1 and of_folder.training.start_from is None


def test_a_run_stands_for_its_config(root: Path, tmp_path: Path) -> None:
    run = shutil.copytree(root / "run", tmp_path / "run")
    write_json(run / "config.json", to_tree(resolve(Given("demo", ("training.lr=0.25",)))))
    for place in (run, run / "training" / "checkpoints" / "step-00000004"):
        assert resolve(Given(str(place))).training.lr == 0.25


def test_a_model_of_the_hub_is_the_folder_that_was_downloaded(root: Path, monkeypatch) -> None:
    fake = FakeHub(folder=root / "hf")
    monkeypatch.setitem(__import__("sys").modules, "huggingface_hub", fake)
    assert model_named("hf:org/name").place == str(root / "hf")
    assert asked_model("hf:org/name") == root / "hf"
    assert resolve(Given("hf:org/name")).plan.model == resolve(Given(str(root / "hf"))).plan.model
    assert ["*.safetensors" in patterns for _, patterns in fake.asked] == [False, True, False]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("llama-3-8", "did you mean 'llama-3-8b'?"),
        ("Qwen/Qwen3-8b", "did you mean 'hf:Qwen/Qwen3-8B'?"),
        ("zzzzzz", "give a name that `trivium models` lists"),
    ],
)
def test_what_is_no_model_is_refused_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(Given(name))
    assert hint in str(caught.value)


def test_a_folder_without_weights_has_settings_and_cannot_be_asked(root: Path, tmp_path: Path) -> None:
    shutil.copy(root / "hf" / "config.json", tmp_path / "config.json")
    assert resolve(Given(str(tmp_path))).plan.model.layers == resolve(Given(str(root / "hf"))).plan.model.layers
    with pytest.raises(DataError, match=r"no \.safetensors files.*hf download ORG/NAME --local-dir"):
        asked_model(str(tmp_path))


@pytest.mark.parametrize(
    ("file", "told"),
    [
        ("story.txt", r"story.txt is text, which --data takes, and no model; give a"),
        ("weights.pt", r"weights.pt is a file and no model; give a"),
        ("hf/config.json", r"hf/config.json is one file of a model, whose folder is hf; give a"),
    ],
)
def test_a_file_that_is_no_model_is_refused_by_what_it_is(root: Path, tmp_path: Path, monkeypatch, file, told) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(root / "hf", "hf")
    Path(file).touch()
    with pytest.raises(ConfigError, match=told):
        resolve(Given(file))
    with pytest.raises(DataError, match=told):
        asked_model(file)
    Path("empty").mkdir()
    with pytest.raises(ConfigError, match="the folder empty contains no config.json of Hugging Face, no checkpoint"):
        resolve(Given("empty"))


@pytest.mark.parametrize(
    "words",
    [
        ("corpus", "harvest", "--preset", "demo", "--data", "text.txt", "--out", "hf"),
        ("report", "hf"),
        ("checkpoint", "import", "hf", "--out", "hf"),
        ("checkpoint", "import", "hf", "--to", "hf"),
    ],
    ids=" ".join,
)
def test_a_hugging_face_folder_is_no_run_directory_and_stays_as_it_is(words, call, root: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("Some words.\n\n" * 200)
    folder = shutil.copytree(root / "hf", tmp_path / "hf")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    ended = call(*words)
    assert ended.returncode == 2 and "hf is a folder of Hugging Face, and a run directory is needed" in ended.stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_name_without_weights_is_refused_where_weights_are_needed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError, match="llama-3-8b does not exist here.*weights are hf:meta-llama/Meta-Llama-3-8B"):
        asked_model("llama-3-8b")
    with pytest.raises(DataError, match="none does not exist; give a run, a checkpoint"):
        asked_model("none")


def test_architecture_that_no_family_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["BertModel"]}))
    with pytest.raises(DataError, match="BertModel"):
        resolve(Given(str(tmp_path)))


def test_weights_of_a_hugging_face_folder_become_a_checkpoint_of_the_run(root: Path, tmp_path: Path) -> None:
    out, folder = tmp_path / "new", root / "hf"
    given = Given(str(folder), (f"training.start_from={folder}",))
    run, weights = with_weights(open_run(out, given))
    assert weights == str(folder) and not out.exists()
    bring(run, weights)
    start = run.config.training.start_from
    assert start == str(out / "imported" / "step-00000000")
    assert Checkpoint.open(start).plan.model.of_weights() == run.config.plan.model.of_weights()
    again, left = with_weights(open_run(out, given))
    assert left is None and again.config == run.config
    other = shutil.copytree(folder, tmp_path / "other")
    with pytest.raises(ConfigError, match="was imported from hf; give another --out"):
        with_weights(open_run(out, Given(str(folder), (f"training.start_from={other}",))))
    same_name = shutil.copytree(folder, tmp_path / "elsewhere" / "hf")
    assert with_weights(open_run(out, Given(str(folder), (f"training.start_from={same_name}",))))[1] is None
    weights_file = same_name / "model.safetensors"
    save_file({name: 2 * x for name, x in load_file(weights_file).items()}, weights_file, {"format": "pt"})
    with pytest.raises(ConfigError, match="was imported from hf with other weights; give another --out"):
        with_weights(open_run(out, Given(str(folder), (f"training.start_from={same_name}",))))


def test_with_hosts_the_first_rank_imports_the_weights_and_only_once(root: Path, call, tmp_path: Path, monkeypatch):
    imported = tmp_path / "new" / "imported" / "step-00000000"
    did: list[tuple[str, bool]] = []

    def rounds(agent: Agent) -> None:
        plan = to_tree(resolve(Given(str(root / "hf"), ("plan.layout.data=2",))).plan)
        for number, rank in ((1, 1), (1, 0), (2, 0)):
            agent.job.rank(Place(rank, 2, 0, ""), Round(number=number, plan=plan))

    monkeypatch.setattr(train, "check_host", lambda *given, **options: None)
    monkeypatch.setattr(train, "join", lambda run, redo: did.append(("joins", imported.is_dir())))
    monkeypatch.setattr(train, "perform", lambda stage, run, redo: did.append(("leads", imported.is_dir())))
    monkeypatch.setattr(hosts, "state_of", lambda stage, run: "anew")
    monkeypatch.setattr(Agent, "run", rounds)
    words = ["train", "--preset", str(root / "hf"), "--out", "new", "--hosts", "1:2", "--set", "plan.layout.data=2"]
    ended = call(*words, "--set", f"training.start_from={root / 'hf'}")
    assert ended.returncode == 0, ended.stderr
    assert did == [("joins", False), ("leads", True), ("leads", True)]
