"""`--adapter`, and a folder of PEFT as MODEL, in every verb that takes them."""

import io
import json
import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from evaluation.models import TEXTS, plan_of, write_checkpoint
from trivium.checkpoint.load import Checkpoint
from trivium.cli.main import command_line
from trivium.cli.options import DEFAULT_OUT
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.interchange.export import export_hf

FEW = ("generation.sampling.max_tokens=8", "generation.sampling.temperature=0")


def trivium(*words: object, sets: tuple[str, ...] = ()) -> None:
    given = [*map(str, words), *(w for s in sets for w in ("--set", s))]
    command_line()(given, prog_name="trivium", standalone_mode=False)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 in a folder of Hugging Face, and a folder of PEFT with adapters of its first layer."""
    root = tmp_path_factory.mktemp("adapters")
    for name, step in (("base", 4), ("other", 8)):
        (root / name).mkdir()
        saved = Checkpoint.open(write_checkpoint(root / name, plan_of(), step=step))
        export_hf(saved, root / f"{name}-hf", tokenizer=root / name / "tokenizer.json")
    (root / "peft").mkdir()
    generator = torch.Generator().manual_seed(5)
    at = "base_model.model.transformer.h.0.attn.c_attn"
    tensors = {
        f"{at}.lora_A.weight": torch.randn(2, 32, generator=generator),
        f"{at}.lora_B.weight": torch.randn(96, 2, generator=generator),
    }
    save_file(tensors, root / "peft" / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": str(root / "base-hf")}
    (root / "peft" / "adapter_config.json").write_text(json.dumps(config))
    return root


def said(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    trivium("generate", *words, "--prompt", "Item 7", sets=FEW)
    return capsys.readouterr().out


def test_adapters_are_beside_their_base_or_name_it(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bare = said(capsys, root / "base-hf")
    texts = {
        said(capsys, root / "base-hf", "--adapter", root / "peft"),
        said(capsys, root / "base" / "checkpoints", "--adapter", root / "peft"),
        said(capsys, root / "peft"),
    }
    assert len(texts) == 1 and bare not in texts


def test_chat_takes_adapters(root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for words in ((root / "base-hf",), (root / "base-hf", "--adapter", root / "peft"), (root / "peft",)):
        monkeypatch.setattr("sys.stdin", io.StringIO("Item 7\n"))
        trivium("chat", *words, sets=FEW)
        answers.append(capsys.readouterr().out)
    bare, beside, named = answers
    assert beside == named != bare


def test_adapters_come_in_and_go_out_and_into_the_weights(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = said(capsys, root / "peft")
    trivium("checkpoint", "import", root / "peft", "--to", tmp_path / "imported")
    path = tmp_path / "imported" / "step-00000000"
    trivium("checkpoint", "export", tmp_path / "out", path, "--format", "peft")
    first, again = (load_file(place / "adapter_model.safetensors") for place in (root / "peft", tmp_path / "out"))
    assert first.keys() == again.keys() and all(torch.equal(x, again[name]) for name, x in first.items())
    trivium("checkpoint", "merge", path, "--to", tmp_path / "merged")
    (tmp_path / "merged" / "tokenizer.json").write_bytes((root / "base" / "tokenizer.json").read_bytes())
    assert said(capsys, path).endswith(expected) and said(capsys, tmp_path / "merged") == expected
    merged = tmp_path / "merged" / "step-00000000"
    trivium("checkpoint", "unmerge", merged, path, "--to", tmp_path / "bare")
    (tmp_path / "bare" / "tokenizer.json").write_bytes((root / "base" / "tokenizer.json").read_bytes())
    capsys.readouterr()
    assert said(capsys, tmp_path / "bare") == said(capsys, root / "base-hf")
    with pytest.raises(CheckpointError, match="was trained on a base whose weights have sha256"):
        trivium("generate", root / "other-hf", "--adapter", tmp_path / "out", "--prompt", "Item")


def test_an_imported_checkpoint_is_merged_beside_itself_and_not_in_another_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "another"):
        trivium("checkpoint", "import", root / "peft", "--to", name)
        trivium("checkpoint", "merge", name)
        assert Checkpoint.open(Path(name, "merged", "step-00000000"))
    assert not DEFAULT_OUT.exists()
    capsys.readouterr()
    assert said(capsys, "one/merged") == said(capsys, root / "peft")


def test_the_commands_that_a_refused_export_proposes_work_as_they_stand(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trivium("checkpoint", "import", root / "peft", "--to", tmp_path / "imported")
    with pytest.raises(ConfigError, match="has adapters") as refused:
        trivium("checkpoint", "export", tmp_path / "hf", tmp_path / "imported" / "step-00000000")
    capsys.readouterr()
    for _ in range(2):  # merge, and then what the output of merge proposes
        told = capsys.readouterr().out or str(refused.value)
        (command,) = re.findall(r"trivium (checkpoint [^`\n]*)", told)
        trivium(*shlex.split(command.replace("DIR", str(tmp_path / "hf"))))
    assert said(capsys, tmp_path / "hf").endswith(said(capsys, root / "peft"))


def test_a_folder_of_adapters_is_refused_with_a_command_where_a_checkpoint_is_needed(
    root: Path, tmp_path: Path
) -> None:
    for words in (
        ("checkpoint", "export", tmp_path / "hf", root / "peft"),
        ("tune", root / "peft", "--data", root / "base"),
    ):
        more = ("--out", tmp_path / "run") if words[0] == "tune" else ()
        with pytest.raises(DataError, match=r"is a folder of adapters.*`trivium checkpoint import \S+ --to \S+`"):
            trivium(*words, *more)


def test_a_hugging_face_folder_is_refused_with_a_command_where_checkpoints_are_compared(root: Path) -> None:
    with pytest.raises(DataError, match=r"`trivium checkpoint import \S+base-hf --to DIR` writes one of it"):
        trivium("diff", root / "base-hf", root / "base")


def test_evaluate_and_serve_take_adapters(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:4])
    (tmp_path / "lambada").mkdir()
    (tmp_path / "lambada" / "test.jsonl").write_text(rows)
    found = []
    for words in ((root / "base-hf",), (root / "base-hf", "--adapter", root / "peft"), (root / "peft",)):
        asked = ("--tasks", "lambada", "--data", tmp_path, "--shots", "0", "--json", tmp_path / "found.json")
        trivium("evaluate", *words, *asked)
        found.append(json.loads((tmp_path / "found.json").read_text())["tasks"])
        (tmp_path / "found.json").unlink()
    assert found[0] != found[1] == found[2]
    pytest.importorskip("fastapi")
    uvicorn = pytest.importorskip("uvicorn")
    asked = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: asked.append(self.config.app))
    trivium("serve", root / "base-hf", "--adapter", root / "peft", sets=("serve.port=0",))
    (app,) = asked
    assert app.app.state.server.worker is not None
    app.app.state.server.worker.close()


def test_adapters_of_another_base_are_refused_everywhere(root: Path, tmp_path: Path) -> None:
    trivium("checkpoint", "import", root / "peft", "--to", tmp_path / "imported")
    adapted = tmp_path / "imported" / "step-00000000"
    trivium("checkpoint", "export", tmp_path / "peft", adapted, "--format", "peft")
    conversation = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "chats.jsonl").write_text(json.dumps(conversation) + "\n")
    beside = (root / "other-hf", "--adapter", tmp_path / "peft")
    for words in (
        ("chat", *beside),
        ("generate", *beside, "--prompt", "Item"),
        ("serve", *beside, "--set", "serve.port=0"),
        ("evaluate", *beside, "--tasks", "lambada", "--data", tmp_path),
        ("checkpoint", "import", *beside, "--to", tmp_path / "to"),
    ):
        with pytest.raises(CheckpointError, match="was trained on a base whose weights have sha256"):
            trivium(*words)
    with pytest.raises(CheckpointError, match="is no merged model of .*, which has no adapter, differs; name"):
        trivium("checkpoint", "unmerge", root / "other" / "checkpoints", adapted, "--to", tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_adapter_whose_base_is_not_here_says_what_to_type(root: Path, tmp_path: Path) -> None:
    (tmp_path / "peft").mkdir()
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        (tmp_path / "peft" / name).write_bytes((root / "peft" / name).read_bytes())
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "org/name"}
    (tmp_path / "peft" / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"is an adapter of 'org/name', which is no folder here.*hf:org/name"):
        trivium("generate", tmp_path / "peft", "--prompt", "Item")
