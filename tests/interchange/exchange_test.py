"""Export to Hugging Face and import: equal logits, equal bits, and detection of every fault."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from plans import small
from ranks import on_ranks
from tokens.foreign import folder_of, llama_words
from trivium.certify.certificate import RULE
from trivium.certify.layouts import ROTARY
from trivium.checkpoint import pieces
from trivium.checkpoint.load import Checkpoint
from trivium.checkpoint.save import save
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import build, to_tree
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.families.common.hf_config import HfConfig
from trivium.interchange import export as exporter
from trivium.interchange import names
from trivium.interchange.bring import import_hf
from trivium.interchange.export import TOLERANCE, compared_positions, export_hf, logits
from trivium.interchange.names import config_of, shape_of
from trivium.model.whole import WholeModel
from trivium.plan.layers.part import Fused
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.tokens.marks import Marks
from trivium.tokens.tokenizer import Tokenizer, given_tokenizer, train_tokenizer
from trivium.training.state import begin_with, fragments
from trivium.training.trainer import Trainer

SLOWED = {"factor": 4.0, "original": 4, "slow": 0.25, "fast": 2.0}  # every pair of columns is partly slowed
MODELS = {
    "gpt": {},
    "gpt untied": {"head": "untied", "ffn": 40},
    "llama": {**ROTARY, "head": "untied"},
    "llama grouped tied": {**ROTARY, "kv_heads": 2, "rope_base": 500.0, "ffn": 40},
    "llama of wide heads": {**ROTARY, "head_width": 10, "head": "untied"},
    "qwen2": {**ROTARY, "kv_heads": 2, "bias": "qkv"},
    "llama 3.1": {**ROTARY, "rope_scaling": {"kind": "llama3", **SLOWED}},
    "llama, linear": {**ROTARY, "rope_scaling": {"kind": "linear", "factor": 4.0}},
    "qwen2, yarn": {**ROTARY, "bias": "qkv", "rope_scaling": {"kind": "yarn", **SLOWED}},
    "olmo2": {**ROTARY, "kv_heads": 2, "qk_norm": "all_heads", "norm_position": "after", "ffn": 40},
    "olmo3": {
        **ROTARY,
        "qk_norm": "all_heads",
        "norm_position": "after",
        "window": 3,
        "pattern": [{"times": 3}, {"window": None}],
        "rope_base": 500.0,
    },
    "qwen3": {**ROTARY, "kv_heads": 2, "qk_norm": "each_head", "head_width": 8, "head": "untied"},
    "mistral": {**ROTARY, "kv_heads": 2, "window": 3},
    "mistral, all in sight": {**ROTARY, "window": 8},
    "ministral": {
        **ROTARY,
        "window": 3,
        "first": [{"times": 1, "window": None}],
        "pattern": [{"times": 1}, {"window": None}],
    },
    "qwen2, later layers": {**ROTARY, "bias": "qkv", "window": 3, "first": [{"times": 2, "window": None}]},
    "qwen3, every other layer": {
        **ROTARY,
        "qk_norm": "each_head",
        "window": 3,
        "pattern": [{"times": 1}, {"window": None}],
    },
}


def written(root: Path, plan: Plan, about: dict[str, object] | None = None) -> Checkpoint:
    trainer = Trainer(plan, Mesh.single(), seed=7, rule=RULE)
    with torch.no_grad():
        for bucket in trainer.buckets:  # biases and norms get nonzero values too
            bucket.weights.add_(torch.randn(bucket.weights.shape, generator=torch.Generator().manual_seed(1)) / 9)
    path = save(root, 4, fragments(trainer), Mesh.single(), {"plan": to_tree(plan), "updates": 4, **(about or {})})
    return Checkpoint.open(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small exported GPT-2."""
    return export_hf(written(tmp_path / "ours", small()), tmp_path / "hf", tokenizer=None).folder


def change(path: Path, **changed: object) -> None:
    """Change values of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))


@pytest.fixture(params=MODELS)
def checkpoint(request, tmp_path: Path) -> Checkpoint:
    return written(tmp_path / "ours", small(model=MODELS[request.param]))


def weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    model = build(Plan, checkpoint.manifest["plan"]).model
    return {
        p.name: checkpoint.read(f"weights/{p.name}", Box((0,) * len(p.shape), p.shape), torch.float64)
        for p in parameters(model)
    }


def test_export_and_import_are_bitwise_inverse(checkpoint: Checkpoint, tmp_path: Path) -> None:
    found = export_hf(checkpoint, tmp_path / "hf", tokenizer=None)
    assert found.difference <= TOLERANCE
    back = Checkpoint.open(import_hf(tmp_path / "hf", tmp_path / "back"))
    back.verify()
    there, here = weights(back), weights(checkpoint)
    assert here.keys() == there.keys() and all(torch.equal(here[k], there[k]) for k in here)
    ours, theirs = (build(Plan, c.manifest["plan"]).model for c in (checkpoint, back))
    plain = {"vocabulary_multiple", "init_std", "kv_heads", "ffn"}
    assert ours.model_dump(exclude=plain) == theirs.model_dump(exclude=plain)
    assert (ours.kv, ours.ffn_width, ours.std) == (theirs.kv, theirs.ffn_width, theirs.std)


def test_vocabulary_padding_is_not_exported(tmp_path: Path) -> None:
    plan = small(model={"vocabulary": 37, "vocabulary_multiple": 32})
    export_hf(written(tmp_path / "ours", plan), tmp_path / "hf", tokenizer=None)
    assert load_file(tmp_path / "hf" / "model.safetensors")["transformer.wte.weight"].shape == (37, 24)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["vocab_size"] == 37


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_import_rejects_non_finite_tensor_by_name(tmp_path: Path, folder: Path, value: float) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["transformer.h.1.mlp.c_fc.weight"][3, 5] = value
    save_file(tensors, file)
    with pytest.raises(CheckpointError, match=r"weights/layers\.1\.mlp\.up\.weight holds a NaN or an infinity"):
        import_hf(folder, tmp_path / "back")
    assert not list((tmp_path / "back").glob("step-*"))


@pytest.mark.parametrize("wrong", ["order of heads", "not transposed", "gate and up swapped", "norm left out"])
def test_wrong_export_is_not_published(tmp_path: Path, monkeypatch, wrong: str) -> None:
    style = ROTARY if wrong == "gate and up swapped" else {}
    checkpoint = written(tmp_path / "ours", small(model={**style, "ffn": 24}))
    if wrong == "order of heads":
        right_pieces = Fused.pieces
        monkeypatch.setattr(
            Fused, "pieces", lambda self, w: w.chunk(3) if len(self.sizes) == 3 else right_pieces(self, w)
        )
    elif wrong == "not transposed":
        # Square matrices have valid shapes when transposed, so only the logits show the fault.
        right = names._transposed
        monkeypatch.setattr(
            names, "_transposed", lambda w, m: w if w.dim() == 2 and w.shape[0] == w.shape[1] else right(w, m)
        )
    elif wrong == "gate and up swapped":
        swapped = Fused((2, 24), along=0, sizes=(1, 1))
        right_pieces = Fused.pieces
        monkeypatch.setattr(
            Fused, "pieces", lambda self, w: right_pieces(self, w)[::-1] if self == swapped else right_pieces(self, w)
        )
    else:
        right_reading = exporter.logits

        def without_norm(folder, *given):
            tensors = load_file(folder / "model.safetensors")
            tensors["transformer.ln_f.weight"].fill_(1.0)
            save_file(tensors, folder / "model.safetensors")
            return right_reading(folder, *given)

        monkeypatch.setattr(exporter, "logits", without_norm)
    with pytest.raises(CheckpointError, match="logits differ"):
        export_hf(checkpoint, tmp_path / "hf", tokenizer=None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ours"]


def test_diverged_model_is_not_reported_as_export_fault(tmp_path: Path, monkeypatch) -> None:
    """Such a checkpoint is not published here, but may come from elsewhere."""
    monkeypatch.setattr(pieces, "is_finite", lambda values: True)
    trainer = Trainer(small(), Mesh.single(), seed=7, rule=RULE)
    trainer.buckets[0].weights.fill_(float("nan"))
    path = save(tmp_path / "ours", 4, fragments(trainer), Mesh.single(), {"plan": to_tree(trainer.plan), "updates": 4})
    with pytest.raises(CheckpointError, match=r"step-00000004: .*own logits are not finite.*earlier checkpoint"):
        export_hf(Checkpoint.open(path), tmp_path / "hf", tokenizer=None)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ours"]


@pytest.mark.parametrize("model", ["gpt", "llama 3.1", "olmo3"])
def test_rounding_does_not_reject_exports(tmp_path: Path, monkeypatch, model: str) -> None:
    """With large weights, rounding in fp32 exceeds any bound that detects faults; in fp64 a correct export agrees."""
    monkeypatch.setattr(exporter, "TOLERANCE", 1e-11)
    checkpoint = written(tmp_path / "ours", small(model=MODELS[model]))
    assert export_hf(checkpoint, tmp_path / "hf", tokenizer=None).difference <= 1e-10


@pytest.mark.parametrize("model", ["gpt", "llama 3.1", "mistral"])
def test_difference_late_in_the_sequence_is_detected(tmp_path: Path, monkeypatch, model: str) -> None:
    """Faults in learned positions, in rotary angles of the last positions, or in a window longer than the beginning."""
    plan = small(model={**MODELS[model], "sequence": 512, **({"window": 300} if model == "mistral" else {})})
    checkpoint = written(tmp_path / "ours", plan)
    found = export_hf(checkpoint, tmp_path / "hf", tokenizer=None)
    assert found.positions == 512 and found.difference <= TOLERANCE

    def late(folder: Path, *given: Any) -> torch.Tensor:
        config = json.loads((folder / "config.json").read_text())
        if model == "gpt":
            held = load_file(folder / "model.safetensors")
            held["transformer.wpe.weight"][400:] = 0
            save_file(held, folder / "model.safetensors")
        elif model == "mistral":
            config["sliding_window"] = 400
        else:
            config["rope_parameters"]["rope_theta"] *= 1 + 3e-5
        (folder / "config.json").write_text(json.dumps(config))
        return logits(folder, *given)

    monkeypatch.setattr(exporter, "logits", late)
    with pytest.raises(CheckpointError, match="logits differ"):
        export_hf(checkpoint, tmp_path / "wrong", tokenizer=None)
    monkeypatch.setattr(exporter, "compared_positions", lambda model: 64)
    export_hf(checkpoint, tmp_path / "early", tokenizer=None)  # nothing differs there


def test_large_models_compare_fewer_positions() -> None:
    def shape(**sizes: int) -> ModelShape:
        return small(model={"vocabulary": 50_257} | sizes).model

    assert compared_positions(small().model) == small().model.sequence
    assert compared_positions(shape(layers=12, hidden=768, heads=12, sequence=1024)) == 1024
    assert compared_positions(shape(layers=24, hidden=2048, heads=16, sequence=2048)) == 128
    assert compared_positions(shape(layers=96, hidden=12288, heads=96, sequence=2048)) == 64
    assert compared_positions(shape(layers=1, hidden=64, heads=64, sequence=8192, vocabulary=1000)) == 1024


def test_large_models_are_split_into_indexed_files_and_others_ignored(tmp_path: Path, monkeypatch) -> None:
    checkpoint, folder = written(tmp_path / "ours", small()), tmp_path / "hf"
    monkeypatch.setattr(exporter, "FILE_BYTES", 20_000)
    found = export_hf(checkpoint, folder, tokenizer=None)
    index = json.loads((folder / names.INDEX).read_text())["weight_map"]
    assert found.files == len(set(index.values())) > 2
    for name, file in index.items():
        with safe_open(folder / file, framework="pt") as opened:
            assert name in set(opened.keys())
    # left by an earlier download, with a later name and other weights
    save_file({name: load_file(folder / file)[name] + 1}, folder / "model-00009-of-00009.safetensors")
    back = Checkpoint.open(import_hf(folder, tmp_path / "back"))
    assert all(torch.equal(a, b) for a, b in zip(weights(checkpoint).values(), weights(back).values(), strict=True))


NO_MAP = "has no weight_map of tensors to files beside it"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (names.INDEX, "{}", NO_MAP),
        (names.INDEX, '{"weight_map": [1]}', NO_MAP),
        (names.INDEX, '{"weight_map": {"a": "../a.safetensors"}}', NO_MAP),
        (names.INDEX, '{"weight_map": {"a": "\\ud83d"}}', "cannot be read"),
        ("config.json", "[1]", r"config\.json holds \[1\], not settings by name"),
        ("config.json", "[" * 100_000, r"config\.json cannot be read"),
    ],
    ids=lambda value: value[:40],
)
def test_invalid_json_file_is_rejected(tmp_path: Path, file: str, text: str, said: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config_of(small().model, dtype="float32")))
    (tmp_path / file).write_text(text)
    with pytest.raises(DataError, match=said):
        import_hf(tmp_path, tmp_path / "back")


def test_bf16_weights_stay_bf16(tmp_path: Path) -> None:
    checkpoint = written(tmp_path / "ours", small(precision={"weights": "bf16"}))
    assert export_hf(checkpoint, tmp_path / "hf", tokenizer=None).difference <= TOLERANCE
    assert {t.dtype for t in load_file(tmp_path / "hf" / "model.safetensors").values()} == {torch.bfloat16}
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert config["dtype"] == config["torch_dtype"] == "bfloat16", "by its name of today, and of before"


@pytest.mark.parametrize(
    ("matrices", "others", "kept"),
    [
        (torch.float16, torch.float16, torch.float16),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.float16, torch.bfloat16, torch.float32),  # neither represents the other
    ],
    ids=str,
)
def test_import_dtype_represents_all_weights(
    tmp_path: Path, matrices: torch.dtype, others: torch.dtype, kept: torch.dtype
) -> None:
    model = {**ROTARY}
    export_hf(written(tmp_path / "ours", small(model=model)), tmp_path / "hf", tokenizer=None)
    path = tmp_path / "hf" / "model.safetensors"
    tensors = {n: t.to(matrices if t.dim() > 1 else others) for n, t in load_file(path).items()}
    # as old Llama folders store them next to 16-bit weights
    constants = {f"model.layers.{n}.self_attn.rotary_emb.inv_freq": torch.ones(3) for n in range(4)}
    save_file(tensors | constants, path)
    back = Checkpoint.open(import_hf(tmp_path / "hf", tmp_path / "back"))
    export_hf(back, tmp_path / "again", tokenizer=None)
    found = load_file(tmp_path / "again" / "model.safetensors")
    assert {t.dtype for t in found.values()} == {kept}
    assert all(torch.equal(found[n].to(t.dtype), t) for n, t in tensors.items() if n in found)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_quantised_weights_are_rejected(tmp_path: Path, folder: Path, dtype: torch.dtype) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    name = "transformer.h.2.mlp.c_fc.weight"
    save_file({**tensors, name: tensors[name].to(dtype)}, path)
    with pytest.raises(DataError, match=f"tensor '{name}' is .*8.*; known: F64, F32, BF16, F16"):
        import_hf(tmp_path / "hf", tmp_path / "back")


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"num_key_value_heads": None}, DataError, r"k_proj.weight' is \(12, 24\), and by config.json it must be \(24"),
        ({"intermediate_size": 30}, DataError, r"gate_proj.weight' is \(40, 24\), and by .* \(30, 24\)"),
        ({"num_key_value_heads": 3}, ConfigError, r"plan.model.heads \(4\) must be a multiple of .*kv_heads \(3\)"),
    ],
)
def test_config_with_other_sizes_is_reported_by_first_tensor(
    tmp_path: Path, changed: dict, error: type, said: str
) -> None:
    model = MODELS["llama grouped tied"]
    export_hf(written(tmp_path / "ours", small(model=model)), tmp_path / "hf", tokenizer=None)
    change(tmp_path / "hf" / "config.json", **changed)
    with pytest.raises(error, match=said):
        import_hf(tmp_path / "hf", tmp_path / "back")


def begin(place: Place, plan: Plan, path: Path, expected: torch.Tensor) -> None:
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    trainer = Trainer(plan, mesh, seed=1, rule=RULE, initial=False)
    begin_with(trainer, Checkpoint.open(path))
    whole = WholeModel(plan.model, precision="fp64", device=torch.device("cpu"))
    for f in fragments(trainer):
        kind, _, name = f.name.partition("/")
        if kind == "weights":
            target = whole.stage.get_parameter(name).detach()
            found = target[tuple(slice(s, s + n) for s, n in zip(f.box.start, f.box.shape, strict=True))]
            assert found.shape == f.box.shape
            right = Checkpoint.open(path).read(f.name, f.box, f.values.dtype)
            assert torch.equal(f.values.view(f.box.shape), right), f.name
        elif kind == "master":
            given = Checkpoint.open(path).read(f"weights/{name}", f.box, f.values.dtype)
            assert torch.equal(f.values.view(f.box.shape), given), f"{f.name} is what is updated"
        else:
            assert not f.values.any(), "moments begin at zero"
    assert trainer.optimizer.steps_done == 0


@pytest.mark.parametrize("precision", ["fp64", "bf16"])
@pytest.mark.parametrize("degrees", [{"tensor": 2, "pipeline": 2}, {"data": 2, "zero": 3}])
def test_imported_model_starts_in_any_layout(tmp_path: Path, degrees: dict[str, int], precision: str) -> None:
    given = written(tmp_path / "ours", small(precision={"weights": precision}))
    export_hf(given, tmp_path / "hf", tokenizer=None)
    path = import_hf(tmp_path / "hf", tmp_path / "back")
    plan = small(**degrees, precision={"weights": precision})
    on_ranks(plan.layout.world_size, begin, plan, path, torch.zeros(1))


def test_tokenizer_is_exported(tmp_path: Path) -> None:
    words = train_tokenizer(["some words, and some more words"] * 3, 300)
    words.save(tmp_path / "tokenizer.json")
    other = words.end_of_text + 5  # joined documents may be trained on without an end-of-text id
    plan = small(model={"vocabulary": words.vocabulary, "end_of_text": other})
    checkpoint = written(tmp_path / "ours", plan)
    export_hf(checkpoint, tmp_path / "hf", tokenizer=tmp_path / "tokenizer.json")
    assert (tmp_path / "hf" / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    generation = json.loads((tmp_path / "hf" / "generation_config.json").read_text())
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    assert generation["eos_token_id"] == config["eos_token_id"] == config["bos_token_id"] == words.end_of_text
    back = Checkpoint.open(import_hf(tmp_path / "hf", tmp_path / "back"))
    assert back.manifest["data"]["tokenizer_sha256"] == words.sha256


def test_special_tokens_of_foreign_tokenizer_are_exported(tmp_path: Path) -> None:
    said = {"eos_token": "</s>", "bos_token": "<s>"}
    place = folder_of(tmp_path / "given", llama_words(["some words"] * 3, opens=True), tokenizer_config=said)
    words = given_tokenizer(str(place))
    words.save(tmp_path / "tokenizer.json")
    checkpoint = written(tmp_path / "ours", small(model={"vocabulary": words.vocabulary}))
    export_hf(checkpoint, tmp_path / "hf", tokenizer=tmp_path / "tokenizer.json")
    for name in ("generation_config.json", "config.json"):
        config = json.loads((tmp_path / "hf" / name).read_text())
        assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert given_tokenizer(str(tmp_path / "hf")).identity == words.identity


@pytest.mark.parametrize("custom", [True, False])
@pytest.mark.parametrize("begun", [True, False])
def test_document_opening_is_applied_by_transformers(tmp_path: Path, custom: bool, begun: bool) -> None:
    """Documents made elsewhere need not follow their tokenizer's convention."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    text = llama_words(["some words"] * 3, opens=custom)
    words = Tokenizer(text, Marks("</s>", "<s>", begun))
    words.save(tmp_path / "tokenizer.json")
    checkpoint = written(tmp_path / "ours", small(model={"vocabulary": words.vocabulary}))
    export_hf(checkpoint, tmp_path / "hf", tokenizer=tmp_path / "tokenizer.json")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert theirs.encode("some words") == [1] * begun + words.encode("some words")
    assert given_tokenizer(str(tmp_path / "hf")).opening == words.opening
    assert ((tmp_path / "hf" / "tokenizer.json").read_text() == text) == (custom == begun)


def marks(folder: Path, name: str = "config.json") -> dict[str, object]:
    tree = json.loads((folder / name).read_text())
    return {k: v for k, v in tree.items() if k in ("bos_token_id", "eos_token_id", "pad_token_id")}


@pytest.mark.parametrize(
    ("said", "no_ids", "fills"),
    [
        ({"bos_token_id": 1, "eos_token_id": 2}, (), 2),
        ({"bos_token_id": 1, "eos_token_id": [3, 2], "pad_token_id": 5}, (), 5),
        ({"bos_token_id": None, "eos_token_id": 2, "pad_token_id": None}, (), None),
        ({}, (), None),  # transformers' defaults are kept in both directions
        ({"bos_token_id": 50256, "eos_token_id": 2, "pad_token_id": -1}, ("bos_token_id", "pad_token_id"), 2),
    ],
)
def test_special_token_ids_round_trip(
    tmp_path: Path, said: dict[str, object], no_ids: tuple[str, ...], fills: int | None
) -> None:
    export_hf(written(tmp_path / "ours", small()), tmp_path / "hf", tokenizer=None)
    assert marks(tmp_path / "hf") == {"bos_token_id": 0, "eos_token_id": 0}  # of a model trained here
    config = json.loads((tmp_path / "hf" / "config.json").read_text())
    config = {k: v for k, v in config.items() if k not in marks(tmp_path / "hf")} | said
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    (tmp_path / "hf" / "generation_config.json").unlink()  # its end would take precedence
    back = Checkpoint.open(import_hf(tmp_path / "hf", tmp_path / "back"))
    export_hf(back, tmp_path / "again", tokenizer=None)
    known = {k: v for k, v in said.items() if k not in no_ids}
    assert marks(tmp_path / "again") == known
    generation = known | {"pad_token_id": fills}
    found = marks(tmp_path / "again", "generation_config.json")
    assert found == {k: v for k, v in generation.items() if v is not None}


def test_end_of_text_comes_from_tokenizer_if_config_has_none(tmp_path: Path) -> None:
    place = folder_of(
        tmp_path / "hf", llama_words(["some words"] * 3, opens=True), tokenizer_config={"eos_token": "</s>"}
    )
    words = given_tokenizer(str(place))
    for vocabulary, expected in ((words.vocabulary, words.end_of_text), (words.end_of_text, 0)):
        ours = written(tmp_path / f"ours-{expected}", small(model={"vocabulary": vocabulary}))
        folder = export_hf(ours, tmp_path / f"theirs-{expected}", tokenizer=None).folder
        change(folder / "config.json", eos_token_id=None)
        (folder / "generation_config.json").unlink()
        for file in place.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        back = Checkpoint.open(import_hf(folder, tmp_path / f"back-{expected}"))
        assert back.manifest["plan"]["model"]["end_of_text"] == expected


@pytest.mark.parametrize(("ends", "kept"), [([5, 2], True), (5, False)])
def test_imported_ids_are_kept_if_tokenizer_agrees(tmp_path: Path, ends: object, kept: bool) -> None:
    said = {"eos_token": "</s>", "bos_token": "<s>"}
    place = folder_of(tmp_path / "given", llama_words(["some words"] * 3, opens=True), tokenizer_config=said)
    words = given_tokenizer(str(place))
    words.save(tmp_path / "tokenizer.json")
    about = {"imported_from": {"marks": {"bos_token_id": 4, "eos_token_id": ends}}}
    checkpoint = written(tmp_path / "ours", small(model={"vocabulary": words.vocabulary}), about)
    export_hf(checkpoint, tmp_path / "hf", tokenizer=tmp_path / "tokenizer.json")
    expected = {"bos_token_id": 4, "eos_token_id": ends} if kept else {"bos_token_id": 1, "eos_token_id": 2}
    assert marks(tmp_path / "hf") == expected


def test_foreign_tokenizer_is_not_exported(tmp_path: Path) -> None:
    mine, other = (train_tokenizer([text] * 3, 300) for text in ("some words, and some more words", "an other text"))
    other.save(tmp_path / "tokenizer.json")
    plan = small(model={"vocabulary": mine.vocabulary})
    checkpoint = written(tmp_path / "ours", plan, {"data": {"tokenizer_sha256": mine.sha256}})
    with pytest.raises(CheckpointError, match="its ids have other meanings"):
        export_hf(checkpoint, tmp_path / "hf", tokenizer=tmp_path / "tokenizer.json")
    unknown = written(tmp_path / "unknown", small(model={"vocabulary": 50}))
    with pytest.raises(CheckpointError, match="ids, but the model of .* predicts 50"):
        export_hf(unknown, tmp_path / "hf", tokenizer=tmp_path / "tokenizer.json")
    assert not (tmp_path / "hf").exists()


def test_unsupported_model_is_not_exported() -> None:
    both = {**ROTARY, "bias": "qkv", "qk_norm": "each_head"}
    for model, said in (
        ({"kv_heads": 2}, "plan.model.kv_heads .2. must be"),
        ({"head_width": 8}, "plan.model.head_width .8. must be hidden / heads .24 / 4."),
        (both, "no architecture .* has .*plan.model.bias qkv.*plan.model.qk_norm each_head"),
        ({"window": 3}, "plan.model.window is 3, and no config.json of GPT2LMHeadModel says which layers"),
        ({**ROTARY, "norm_position": "after"}, "plan.model.norm_position after.*Olmo2ForCausalLM: rms_norm"),
        (
            {**MODELS["olmo3"], "rope_scaling": {"kind": "yarn", **SLOWED}},
            "plan.model.rope_scaling is of kind 'yarn' in all layers, and Olmo3ForCausalLM",
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            config_of(small(model=model).model, dtype="float32")


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"architectures": ["BertModel"]}, "BertModel"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attention_bias": True}, "attention_bias"),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2}}, "rope_parameters.rope_type is 'dynamic'"),
        ({"rope_scaling": {"rope_type": [1]}}, r"rope_scaling.rope_type is \[1\], and must be default, linear"),
        ({"rope_scaling": {"type": "su"}}, "rope_scaling.rope_type is 'su', and must be default, linear"),
        ({"rope_parameters": {"type": "linear"}}, "rope_parameters.factor is None, and must be a number"),
        ({"rope_parameters": LLAMA3 | {"low_freq_factor": "1"}}, "low_freq_factor is '1'"),
        ({"rope_parameters": YARN | {"truncate": False}}, "rope_parameters.truncate is False"),
        ({"rope_parameters": YARN | {"mscale": 0.7}}, "rope_parameters.mscale is 0.7"),
        ({"rope_parameters": YARN, "rope_scaling": LLAMA3}, "rope_parameters and rope_scaling differ"),
        ({"rope_parameters": "yarn"}, "rope_parameters is 'yarn'; it must be a valid dictionary"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}}, "factor is 0.25"),
        ({"rope_parameters": {"partial_rotary_factor": True}}, "partial_rotary_factor is True"),
        ({"rope_parameters": {"rope_theta": True}}, "rope_theta is True, and must be a number"),
        ({"rope_parameters": {"rope_type": "linear", "factor": True}}, "factor is True, and must be a number"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor is '2', and must be a number"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"head_dim": "wide"}, "head_dim is 'wide'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it must be less than or equal to 10000"),
        ({"architectures": ["Olmo3ForCausalLM"], "num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000; it"),
        ({"architectures": ["GraniteForCausalLM"], "logits_scaling": 0}, "logits_scaling is 0; it must be greater"),
        ({"architectures": ["GraniteForCausalLM"], "logits_scaling": [1]}, r"logits_scaling is \[1\]; it must be"),
        ({"architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 0}, "query_pre_attn_scalar is 0; it must"),
        ({"architectures": ["Gemma3ForCausalLM"], "query_pre_attn_scalar": None}, "query_pre_attn_scalar is None, and"),
        ({"architectures": ["Gemma3ForCausalLM"], "attn_logit_softcapping": 0.5}, "attn_logit_softcapping is 0.5, and"),
        (
            {"architectures": ["Gemma3ForCausalLM"], "rope_local_base_freq": {}},
            r"rope_local_base_freq is \{\}; it must",
        ),
        ({"architectures": ["Gemma3ForCausalLM"], "rope_theta": 0}, "rope_theta is 0; it must be greater than 0"),
        ({"architectures": ["Gemma3ForCausalLM"], "sliding_window_pattern": 0}, "sliding_window_pattern is 0; it must"),
        ({"architectures": ["GPTNeoXForCausalLM"], "use_parallel_residual": "false"}, "parallel_residual is 'false'"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "rope_interleave": "false"}, "rope_interleave is 'false'"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "qk_nope_head_dim": "x"}, "qk_nope_head_dim is 'x'; it must be"),
        ({"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": "1"}, "predict_layers is '1'; it"),
        ({"architectures": 7}, "7"),
        ({"architectures": [["BertModel"]]}, "BertModel"),
    ],
)
def test_unsupported_architecture_is_not_imported(changed, said: str) -> None:
    config = config_of(small(model={**ROTARY}).model, dtype="float32")
    assert shape_of(config, "x").positions == "rotary"
    with pytest.raises(DataError, match=said):
        shape_of({**config, **changed}, "x")


SLIDES, ALL = "sliding_attention", "full_attention"
AT_500, AT_600, AT_500K = ({"rope_type": "default", "rope_theta": base} for base in (500.0, 600.0, 500000.0))


@pytest.mark.parametrize(
    ("said", "base"),
    [
        ({}, 500000.0),
        ({"rope_theta": 500000}, 500000.0),
        ({"rope_parameters": {ALL: AT_500, SLIDES: AT_500}, "rope_theta": 7.0}, 500.0),
        ({"rope_parameters": {ALL: AT_500K}}, 500000.0),
        ({"rope_parameters": {ALL: AT_500, SLIDES: AT_600}}, "full_attention by .*500.0.* by .*600.0"),
        ({"rope_parameters": {ALL: AT_500}}, "full_attention by .*500.0.* by .*500000.0"),
        ({"rope_theta": 500.0}, "full_attention by .*500.0.* by .*500000.0"),
        ({"rope_theta": 500000.0, "rope_scaling": YARN}, "full_attention by .*'yarn'.* by .*None"),
        ({"rope_parameters": {ALL: AT_500 | YARN, SLIDES: AT_500}}, "full_attention by .*'yarn'.* by .*None"),
        ({"rope_parameters": {ALL: AT_500 | YARN, SLIDES: AT_500 | YARN}}, 500.0),
        ({"rope_scaling": YARN, "layer_types": [ALL] * 4}, 500000.0),
        ({"rope_parameters": AT_500}, "must hold full_attention and sliding_attention"),
        ({"rope_parameters": [1]}, "it must be a valid dictionary"),
    ],
)
def test_olmo3_with_uniform_rope_is_imported(said: dict, base: float | str) -> None:
    config = config_of(small(model=MODELS["olmo3"]).model, dtype="float32")
    plain = {k: v for k, v in config.items() if not k.startswith("rope_")}
    if isinstance(base, str):
        with pytest.raises(DataError, match=base):
            shape_of({**plain, **said}, "x")
        return
    shape = shape_of({**plain, **said}, "x")
    assert shape.rope_base == base and (shape.rope_scaling is not None) == ("yarn" in str(said))
    if transformers := sys.modules.get("transformers"):
        read = transformers.Olmo3Config(**{**plain, **said}).rope_parameters
        assert read[ALL]["rope_theta"] == base


WINDOWS = [  # architecture, config.json, and which of four layers have a window of 3
    ("MistralForCausalLM", {"sliding_window": None}, []),
    ("MistralForCausalLM", {"sliding_window": 3}, [0, 1, 2, 3]),
    ("MinistralForCausalLM", {"sliding_window": 3}, [0, 1, 2, 3]),
    ("MinistralForCausalLM", {"sliding_window": 3, "layer_types": [ALL, SLIDES, SLIDES, ALL]}, [1, 2]),
    ("MinistralForCausalLM", {"sliding_window": 3, "layer_types": [ALL] * 4}, []),
    ("LlamaForCausalLM", {"sliding_window": 3, "layer_types": [SLIDES] * 4}, []),  # neither uses a window
    *(
        (name, {"max_window_layers": 2, **said}, layers)
        for name in ("Qwen2ForCausalLM", "Qwen3ForCausalLM")
        for said, layers in (
            ({"sliding_window": 3}, []),
            ({"use_sliding_window": False, "sliding_window": 3, "layer_types": [ALL] * 4}, []),
            ({"use_sliding_window": True, "sliding_window": 3}, [2, 3]),
            ({"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 4}, []),
            ({"use_sliding_window": True, "sliding_window": 3, "max_window_layers": None}, "max_window_layers"),
            ({"use_sliding_window": True, "sliding_window": None}, []),
            ({"use_sliding_window": True, "sliding_window": 3, "layer_types": [SLIDES, ALL, SLIDES, ALL]}, [0, 2]),
            ({"use_sliding_window": False, "sliding_window": 3, "layer_types": [SLIDES] * 4}, "no window is in"),
        )
    ),
    ("Olmo3ForCausalLM", {"sliding_window": 3}, [0, 1, 2]),
    ("Olmo3ForCausalLM", {"sliding_window": 3, "layer_types": [ALL, SLIDES, ALL, SLIDES]}, [1, 3]),
    ("Olmo3ForCausalLM", {"sliding_window": 3, "layer_types": [ALL] * 4}, []),
    ("Olmo3ForCausalLM", {"sliding_window": None}, "no window is in use"),
    ("MistralForCausalLM", {"sliding_window": 0}, "sliding_window is 0; it must be greater than or equal to 1"),
    ("MistralForCausalLM", {"sliding_window": "far"}, "sliding_window is 'far'"),
    ("MinistralForCausalLM", {"sliding_window": 3, "layer_types": [SLIDES] * 3}, "for each of 4 layers"),
    ("MinistralForCausalLM", {"sliding_window": 3, "layer_types": ["chunked"] * 4}, "layer_types is .'chunked'"),
    (
        "MinistralForCausalLM",
        {"sliding_window": 3, "layer_types": [SLIDES, ALL, ALL, SLIDES]},
        r"in layers \[0, 3\], and this engine computes it from some layer on",
    ),
]


@pytest.mark.parametrize(("name", "said", "expected"), WINDOWS)
def test_window_is_imported_or_rejected_as_in_transformers(
    name: str, said: dict[str, object], expected: list[int] | str
) -> None:
    written = config_of(small(model={**ROTARY}).model, dtype="float32")
    llama = {k: v for k, v in written.items() if not k.startswith("rope_")} | {"architectures": [name]}
    if isinstance(expected, str):
        with pytest.raises(DataError, match=expected):
            shape_of({**llama, **said}, "x")
        return
    model = shape_of({**llama, **said}, "x")
    assert [n for n in range(4) if model.form_of(n).window == 3] == expected
    assert small(model=model.model_dump()).check() == []


@pytest.mark.parametrize(
    ("said", "base"),
    [({}, 10000), ({"rope_theta": 500.0}, 10000), ({"rope_theta": 500.0, "rotary_emb_base": 700}, 700)],
)
def test_neox_reads_the_fields_that_transformers_reads(said: dict[str, float], base: float) -> None:
    config = {"architectures": ["GPTNeoXForCausalLM"], "vocab_size": 9, "hidden_size": 64, "num_attention_heads": 2}
    config |= {"num_hidden_layers": 1, "intermediate_size": 8, "max_position_embeddings": 8, **said}
    assert shape_of({**config, "head_dim": 32}, "x").rope_base == base
    with pytest.raises(DataError, match="x: head_dim is 8, and must be hidden_size / num_attention_heads, 32"):
        shape_of({**config, "head_dim": 8}, "x")
    if transformers := sys.modules.get("transformers"):
        assert transformers.GPTNeoXConfig(**config).rope_parameters["rope_theta"] == base


def test_missing_window_has_architectures_default() -> None:
    config = config_of(small(model={**ROTARY, "sequence": 8192}).model, dtype="float32")
    for name in ("MistralForCausalLM", "MinistralForCausalLM"):
        assert shape_of({**config, "architectures": [name]}, "x").window == 4096
    later = shape_of({**config, "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}, "x")
    assert later.window is None, "it begins behind the last of few layers"


def test_missing_sizes_have_architectures_defaults() -> None:
    config = config_of(small(model={**ROTARY, "heads": 12}).model, dtype="float32")
    bare = {k: v for k, v in config.items() if k not in ("num_key_value_heads", "head_dim")}
    mistral = shape_of({**bare, "architectures": ["MistralForCausalLM"], "num_attention_heads": 16}, "x")
    qwen3 = shape_of({**bare, "architectures": ["Qwen3ForCausalLM"], "num_attention_heads": 64}, "x")
    llama = shape_of(bare, "x")
    assert (mistral.kv, qwen3.kv, qwen3.head_columns) == (8, 32, 128)
    assert (llama.kv, llama.head_width, llama.head_columns) == (12, None, 2)


@pytest.mark.parametrize("key", ["n_layer", "vocab_size", "n_positions"])
@pytest.mark.parametrize("value", [None, 0, "two"])
def test_config_without_size_is_rejected(key: str, value: object) -> None:
    config = config_of(small().model, dtype="float32")
    with pytest.raises(DataError, match=rf"x: {key} is {value!r}(, and must be a whole number|; it must be )"):
        shape_of({k: v for k, v in config.items() if k != key} | ({key: value} if value is not None else {}), "x")


def kinds_of(family: str) -> list[tuple[str, Any, Any]]:
    """Return every field of a config.json with a valid value and values of other types."""
    config = config_of(small(model={"gpt": {}, "llama": ROTARY}[family]).model, dtype="float32")
    more = {"n_inner": 4, "head_dim": 4, "num_key_value_heads": 2, "eos_token_id": 3, "bos_token_id": [1, 2]}
    wrong: dict[type, tuple[Any, ...]] = {
        bool: (1, 0, "true", "false", []),
        int: (True, "2", 2.5, [2], {}, -(10**30)),
        float: (True, "0.1", [], {}),
        str: (1, True, ["silu"]),
        dict: ("x", 1, True, [1]),
        list: ("x", True, [True], ["1"]),
    }
    ids = ("eos_token_id", "bos_token_id")
    known = [n for n in config | more if n in HfConfig.model_fields and (config | more)[n] is not None]
    return [
        (name, right, other)
        for name in known
        for right in [(config | more)[name]]
        for other in wrong[list if name in ids else type(right)]
    ]


@pytest.mark.parametrize("family", ["gpt", "llama"])
def test_field_of_wrong_type_is_rejected_by_path_field_and_value(family: str) -> None:
    config = config_of(small(model={"gpt": {}, "llama": ROTARY}[family]).model, dtype="float32")
    cases = kinds_of(family)
    assert len(cases) > 50
    for name, _, other in cases:
        with pytest.raises(DataError, match=rf"the/config\.json: {name}\S* is ") as refused:
            shape_of({**config, name: other}, "the/config.json")
        value = json.dumps(other) if not isinstance(other, str) else f"'{other}'"
        assert f" is {value}" in str(refused.value), (name, other)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("target", [None, "/dev/zero"])
def test_special_files_do_not_block(tmp_path: Path, folder: Path, name: str, target: str | None) -> None:
    path = folder / name
    path.unlink()
    os.mkfifo(path) if target is None else path.symlink_to(target)
    with pytest.raises(DataError, match="not a regular file"):
        import_hf(folder, tmp_path / "back")


def test_more_layers_than_tensors_are_rejected_early(tmp_path: Path, folder: Path) -> None:
    for layers, told in ((10_000, "says 10000 layers, and the files hold"), (10**12, "n_layer is 1000000000000; ")):
        change(folder / "config.json", n_layer=layers)
        with pytest.raises(DataError, match=f"config.json.*{told}"):
            import_hf(folder, tmp_path / "back")


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_unused_layer_weights_are_rejected(tmp_path: Path, folder: Path, prefix: str) -> None:
    path = folder / "model.safetensors"
    tensors = {f"{prefix}{n.removeprefix('transformer.')}": v for n, v in load_file(path).items()}
    tensors[f"{prefix}h.0.attn.bias"] = torch.ones(1)  # the mask that old folders store
    save_file(tensors, path)
    import_hf(folder, tmp_path / "back")
    change(folder / "config.json", n_layer=3)
    with pytest.raises(DataError, match=rf"12 tensors of layers .* the first '{prefix}h\.3\."):
        import_hf(folder, tmp_path / "other")


@pytest.mark.parametrize("said", [{"tie_word_embeddings": True}, {}])  # GPT-2's are tied by default
def test_head_that_differs_from_tied_embedding_is_rejected(tmp_path: Path, folder: Path, said: dict) -> None:
    path, config = folder / "model.safetensors", json.loads((folder / "config.json").read_text())
    del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config | said))
    tensors = load_file(path)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"].clone()  # as old folders store it
    save_file(tensors, path)
    import_hf(folder, tmp_path / "back")
    tensors["lm_head.weight"][-1, -1] += 1e-3
    save_file(tensors, path)
    with pytest.raises(DataError, match="tie_word_embeddings is true.* another lm_head.weight than"):
        import_hf(folder, tmp_path / "other")


def test_folder_without_safetensors_or_tensors_is_rejected(tmp_path: Path, folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    del tensors["transformer.h.1.ln_2.bias"]
    save_file(tensors, path)
    with pytest.raises(DataError, match=r"transformer.h.1.ln_2.bias"):
        import_hf(tmp_path / "hf", tmp_path / "back")
    path.rename(tmp_path / "hf" / "pytorch_model.bin")
    with pytest.raises(DataError, match="no .safetensors"):
        import_hf(tmp_path / "hf", tmp_path / "back")


def test_transformers_loads_the_export_with_equal_logits(checkpoint: Checkpoint, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    export_hf(checkpoint, tmp_path / "hf", tokenizer=None)
    model = build(Plan, checkpoint.manifest["plan"]).model
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    assert type(theirs).__name__ == config_of(model, dtype="float32")["architectures"][0]
    rows = torch.randint(0, model.vocabulary, (3, model.sequence))
    ours = WholeModel(model, precision="fp32", device=torch.device("cpu"))
    for name, values in weights(checkpoint).items():
        ours.load(name, values)
    with torch.no_grad():
        difference = (theirs(rows).logits - ours.logits(rows.tolist())).abs().max()
    assert difference <= TOLERANCE


def test_invalid_end_of_text_is_rejected_before_writing(tmp_path: Path, folder: Path) -> None:
    """transformers' default is 50256, whatever the vocabulary is."""
    change(folder / "config.json", eos_token_id=50256)
    with pytest.raises(ConfigError, match="end_of_text"):
        import_hf(folder, tmp_path / "back")
    assert not (tmp_path / "back").exists()
