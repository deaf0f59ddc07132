"""Mixtures of experts in folders of Hugging Face: transformers' models come in and go out, equal in fp64."""

import importlib
import json
import time
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file

from interchange.all_in_fp64 import all_in_fp64
from plans import small
from ranks import on_ranks
from trivium.certify.certificate import RULE
from trivium.checkpoint.load import Checkpoint
from trivium.cli.imported import write_preset
from trivium.comms.launch import Place
from trivium.comms.mesh import Mesh
from trivium.config import to_tree
from trivium.errors import CheckpointError, DataError
from trivium.evaluation.answer import NativeScorer
from trivium.evaluation.windows import Encoded
from trivium.interchange import export
from trivium.interchange.bring import import_hf
from trivium.interchange.export import export_hf, logits
from trivium.interchange.names import Twin, shape_of, twins
from trivium.model.generate import Choice, Draft, continue_drafts
from trivium.model.whole import WholeModel
from trivium.plan.parameters import Box, parameters
from trivium.plan.plan import Plan
from trivium.tokens.tokenizer import Tokenizer
from trivium.training.state import begin_with, save_state
from trivium.training.trainer import Samples, Trainer

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

VOCABULARY, SEQUENCE = 60, 12
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": SEQUENCE,
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
    "router_aux_loss_coef": 0.0,
}
EXPERTS = {**SMALL, "num_experts": 6, "num_experts_per_tok": 2}
QWEN = {**EXPERTS, "moe_intermediate_size": 24}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 3.0,
    "original_max_position_embeddings": 4,
    "beta_slow": 1.0,
    "beta_fast": 2.0,
}
DEEPSEEK = {
    **SMALL,
    "num_key_value_heads": 4,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 24,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 12,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 7,
}
DEEPSEEK_V2 = {**DEEPSEEK, "n_shared_experts": 2, "rms_norm_eps": 1e-5}
DEEPSEEK_V3 = {**DEEPSEEK, "n_shared_experts": 1, "n_group": 4, "topk_group": 2, "num_nextn_predict_layers": 0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {**SMALL, "num_local_experts": 4}),
    "mixtral, tied, through a window": (
        "Mixtral",
        {**SMALL, "num_local_experts": 4, "num_experts_per_tok": 1, "sliding_window": 5, "tie_word_embeddings": True},
    ),
    "olmoe": ("Olmoe", EXPERTS),
    "olmoe, normalized": ("Olmoe", {**EXPERTS, "num_key_value_heads": 4, "norm_topk_prob": True}),
    "qwen2-moe": ("Qwen2Moe", {**QWEN, "shared_expert_intermediate_size": 40}),
    "qwen2-moe, some layers dense, through a window": (
        "Qwen2Moe",
        {
            **QWEN,
            "num_hidden_layers": 4,
            "shared_expert_intermediate_size": 40,
            "mlp_only_layers": [0],
            "use_sliding_window": True,
            "sliding_window": 5,
            "norm_topk_prob": True,
        },
    ),
    "qwen3-moe": ("Qwen3Moe", {**QWEN, "head_dim": 12, "norm_topk_prob": True}),
    "qwen3-moe, every second layer dense, through a window": (
        "Qwen3Moe",
        {
            **QWEN,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "decoder_sparse_step": 2,
            "use_sliding_window": True,
            "sliding_window": 5,
        },
    ),
    "deepseek-v2-lite": (
        "DeepseekV2",
        {**DEEPSEEK_V2, "q_lora_rank": None, "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707}},
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            **DEEPSEEK_V2,
            "q_lora_rank": 10,
            "topk_method": "group_limited_greedy",
            "n_group": 4,
            "topk_group": 2,
            "routed_scaling_factor": 16.0,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {**DEEPSEEK_V3, "q_lora_rank": 10, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0}},
    ),
    "deepseek-v3, all layers with experts, halves rotated": (
        "DeepseekV3",
        {**DEEPSEEK_V3, "q_lora_rank": None, "rope_interleave": False, "first_k_dense_replace": 0},
    ),
}
ROUNDING = 1e-11  # of logits and gradients of these models in fp64, relative to the largest


def theirs(name: str, folder: Path, **more: Any) -> Any:
    """Return a model of transformers in fp64, with random weights that are saved in `folder`."""
    family, settings = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**{**settings, **more})
    config._experts_implementation = "eager"  # the only one in fp64
    torch.manual_seed(3)
    with all_in_fp64():
        model = getattr(transformers, f"{family}ForCausalLM")(config).double()
        with torch.no_grad():
            for p in model.parameters():
                p.add_(torch.randn(p.shape, dtype=p.dtype) / 4)
            for name, buffer in model.named_buffers():
                if name.endswith("e_score_correction_bias"):
                    buffer.copy_(torch.randn(buffer.shape, dtype=buffer.dtype) / 4)
    model.save_pretrained(folder)
    return model


def there(model: Any, rows: torch.Tensor) -> torch.Tensor:
    with all_in_fp64(), torch.no_grad():
        found: torch.Tensor = model(rows).logits
    return found


def ours(checkpoint: Checkpoint) -> WholeModel:
    whole = WholeModel(checkpoint.plan.model, precision="fp64", device=torch.device("cpu"))
    for p in parameters(checkpoint.plan.model):
        whole.load(p.name, checkpoint.read(f"weights/{p.name}", Box((0,) * len(p.shape), p.shape), torch.float64))
    return whole


def tokens(rows: int, positions: int = SEQUENCE) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (rows, positions), generator=torch.Generator().manual_seed(1))


def away(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


def assert_equal_folders(one: Path, two: Path) -> None:
    before, after = (load_file(folder / "model.safetensors") for folder in (one, two))
    assert before.keys() == after.keys() and all(torch.equal(before[key], after[key]) for key in before)


@pytest.mark.parametrize("name", MODELS)
def test_folder_of_transformers_comes_back_unchanged_with_equal_logits(tmp_path: Path, name: str) -> None:
    model, rows = theirs(name, tmp_path / "theirs"), tokens(3)
    expected = there(model, rows)
    checkpoint = Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours"))
    assert away(ours(checkpoint).logits(rows.tolist()), expected) <= ROUNDING
    export_hf(checkpoint, tmp_path / "back", tokenizer=None)
    assert_equal_folders(tmp_path / "theirs", tmp_path / "back")
    assert away(logits(tmp_path / "back", rows, torch.float64), expected) <= ROUNDING, "the plain reading of the folder"
    again, how = json.loads((tmp_path / "back" / "config.json").read_text()), {"experts_implementation": "eager"}
    assert shape_of(again, "config.json") == checkpoint.plan.model
    with all_in_fp64():
        loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back", dtype=torch.float64, **how)
    assert torch.equal(there(loaded, rows), expected)


def test_settings_of_10000_layers_are_read_in_a_second() -> None:
    config = {**DEEPSEEK_V3, "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 10_000}
    begun = time.process_time()
    shape = shape_of({**config, "first_k_dense_replace": 3}, "config.json")
    assert time.process_time() - begun <= 1
    assert list(shape.experts_by_layer) == list(range(3, 10_000))


def test_null_period_of_layers_with_experts_is_the_default() -> None:
    config = {**QWEN, "architectures": ["Qwen3MoeForCausalLM"]}
    assert shape_of({**config, "decoder_sparse_step": None}, "config.json") == shape_of(config, "config.json")


@pytest.mark.parametrize("name", ["deepseek-v2", "deepseek-v3"])
def test_width_of_heads_that_contradicts_its_parts_is_refused(name: str) -> None:
    family, settings = MODELS[name]
    config = getattr(transformers, f"{family}Config")(**settings).to_dict()
    config["architectures"] = [f"{family}ForCausalLM"]
    assert shape_of({**config, "qk_head_dim": 10}, "config.json") == shape_of(config, "config.json")
    with pytest.raises(DataError, match=r"qk_head_dim is 99, and qk_nope_head_dim \(6\) and qk_rope_head_dim \(4\)"):
        shape_of({**config, "qk_head_dim": 99}, "config.json")


def _swapped(rows: list[Twin]) -> list[Twin]:
    return [t._replace(theirs=t.theirs[::-1]) if t.ours.name.endswith("experts.up.weight") else t for t in rows]


def _permuted(rows: list[Twin]) -> list[Twin]:
    own = [t for t in rows if t.ours.name.endswith("1.mlp.experts.down.weight")]
    moved = {id(t): t._replace(theirs=other.theirs) for t, other in zip(own, own[1:] + own[:1], strict=True)}
    return [moved.get(id(t), t) for t in rows]


def _lost(rows: list[Twin]) -> list[Twin]:
    return [t for t in rows if not (t.ours.by_expert and t.box.start[0] == 2)]


@pytest.mark.parametrize("fault", [_swapped, _permuted, _lost], ids=lambda f: f.__name__[1:])
def test_an_export_with_a_fault_is_not_published(tmp_path: Path, monkeypatch, fault) -> None:
    """Gate and up swapped, experts permuted, an expert lost (NVIDIA-NeMo/Megatron-Bridge#1716)."""
    theirs("mixtral", tmp_path / "theirs")
    source = Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours"))
    monkeypatch.setattr(export, "twins", lambda model: fault(list(twins(model))))
    with pytest.raises(CheckpointError, match="nothing was exported"):
        export_hf(source, tmp_path / "back", tokenizer=None)
    assert not (tmp_path / "back").exists()


def test_modules_that_predict_further_tokens_are_left_out_by_name(tmp_path: Path) -> None:
    """Behind the last layer of a published DeepSeek-V3; without their number in config.json they are refused."""
    theirs("deepseek-v3", folder := tmp_path / "theirs")
    plain = ours(Checkpoint.open(import_hf(folder, tmp_path / "plain")))
    last = plain.model.layers
    more = {f"model.layers.{last}.{name}.weight": torch.zeros(24, 48) for name in ("eh_proj", "self_attn.o_proj")}
    save_file({**load_file(folder / "model.safetensors"), **more}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=f"model.layers.{last}.eh_proj.weight"):
        import_hf(folder, tmp_path / "refused")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": 1}))
    found = Checkpoint.open(import_hf(folder, tmp_path / "ours"))
    assert found.manifest["imported_from"]["left_out"] == {f"model.layers.{last}.": 2}
    del config["num_nextn_predict_layers"]
    for name, more in (("default", {}), ("many", {"num_nextn_predict_layers": 10**9})):
        (folder / "config.json").write_text(json.dumps({**config, **more}))
        again = Checkpoint.open(import_hf(folder, tmp_path / name))
        assert again.manifest["imported_from"]["left_out"] == found.manifest["imported_from"]["left_out"]
    assert torch.equal(ours(found).logits(tokens(2).tolist()), plain.logits(tokens(2).tolist()))
    assert f"2 tensors of model.layers.{last}.* are left out" in "".join(write_preset(found.directory))


@pytest.mark.parametrize(
    ("name", "balance_loss"),
    [(name, balance) for name in MODELS for balance in (0.0, 0.5) if not (balance and name.startswith("deepseek"))],
)
def test_gradients_equal_those_of_transformers(tmp_path: Path, name: str, balance_loss: float) -> None:
    model = theirs(name, tmp_path / "theirs", router_aux_loss_coef=balance_loss, output_router_logits=True)
    checkpoint = Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours"))
    shape, rows = checkpoint.plan.model, tokens(2, SEQUENCE + 1)
    plan = small(model=to_tree(shape), batch={"sequences": 2, "micro": 2}, zero=0, precision={"weights": "fp64"})
    trainer = Trainer(plan, Mesh.single(), seed=1, rule=RULE)
    begin_with(trainer, checkpoint)
    trainer.accumulate(0, Samples.of_ids(rows.numpy().reshape(-1), plan, 0))
    flat = rows.reshape(-1)[: 2 * SEQUENCE + 1]
    with all_in_fp64():
        found = model(flat[:-1].view(2, SEQUENCE))
        balance = balance_loss * balance_of(found.router_logits, model) if balance_loss else 0.0
        (torch.nn.functional.cross_entropy(found.logits.flatten(0, 1), flat[1:]) + balance).backward()
    gradients = as_on_disk(model)
    for twin in twins(shape):
        if not twin.ours.trainable:
            continue
        expected = twin.from_hf(tuple(gradients[name] for name in twin.theirs))
        bucket, slot = next((b, slot) for b in trainer.buckets for slot in b.slots if slot.row.name == twin.ours.name)
        own = bucket.gradients[slot.start : slot.stop].view(slot.parameter.shape)
        own = own[twin.box.within(Box((0,) * own.dim(), tuple(own.shape)))]
        assert (own - expected).abs().max() <= ROUNDING * max(1.0, float(expected.abs().max())), twin.theirs


def balance_of(router_logits: tuple[torch.Tensor, ...], model: Any) -> torch.Tensor:
    """Return the balance loss of transformers, without its factor."""
    there = importlib.import_module(type(model).__module__)
    count, chosen = model.config.num_experts, model.config.num_experts_per_tok
    found: torch.Tensor = there.load_balancing_loss_func(router_logits, count, chosen)
    return found


def as_on_disk(model: Any) -> dict[str, torch.Tensor]:
    """Return the gradients of a model of transformers by the names of the tensors in its folder."""
    mixtral = type(model).__name__ == "MixtralForCausalLM"
    names = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    found: dict[str, torch.Tensor] = {}
    for name, p in model.named_parameters():
        name = name.replace(".mlp.", ".block_sparse_moe.") if mixtral else name
        at, _, last = name.rpartition(".")
        gradient = torch.zeros_like(p) if p.grad is None else p.grad
        if last == "gate_up_proj":
            for expert, both in enumerate(gradient):
                for part, each in zip(names, both.chunk(2), strict=False):
                    found[f"{at}.{expert}.{part}.weight"] = each
        elif last == "down_proj":
            found |= {f"{at}.{expert}.{names[2]}.weight": each for expert, each in enumerate(gradient)}
        else:
            found[name] = gradient
    return found


@pytest.mark.parametrize("name", MODELS)
def test_generation_and_likelihoods_with_a_cache_equal_those_of_transformers(tmp_path: Path, name: str) -> None:
    model = theirs(name, tmp_path / "theirs")
    here = ours(Checkpoint.open(import_hf(tmp_path / "theirs", tmp_path / "ours")))
    prompts = [[5, 7, 11], [2, 3, 5, 7, 11, 13, 17], [9]]
    drafts = [Draft(p, Choice(0, 0, 1, 0), lambda drawn: False, SEQUENCE - len(p)) for p in prompts]
    continue_drafts(here, drafts)
    for prompt, draft in zip(prompts, drafts, strict=True):
        nats = there(model, torch.tensor([draft.text]))[0].log_softmax(-1)
        assert draft.text[len(prompt) :] == nats.argmax(-1)[len(prompt) - 1 : -1].tolist()
        asked = [Encoded(draft.text[:n], draft.text[n:]) for n in (1, 5)]
        found = NativeScorer(here, cast(Tokenizer, None)).loglikelihood_of_ids(asked)
        for (likelihood, _), (context, continuation) in zip(found, asked, strict=True):
            expected = sum(float(nats[len(context) + n - 1, token]) for n, token in enumerate(continuation))
            assert likelihood == pytest.approx(expected, rel=1e-6)  # scorers add up in fp32


MISSING = "model.layers.1.mlp.experts.4.up_proj.weight"


def test_folder_without_a_tensor_of_one_expert_is_refused_with_its_name(tmp_path: Path) -> None:
    theirs("qwen3-moe", tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    held = load_file(file)
    for tensors, said in (
        ({name: x for name, x in held.items() if name != MISSING}, f"has no tensor '{MISSING}'"),
        ({**held, MISSING.replace("4", "6"): held[MISSING].clone()}, f"the first '{MISSING.replace('4', '6')}'"),
        ({**held, MISSING: held[MISSING][:-1].contiguous()}, rf"'{MISSING}' is \(23, 32\), .* must be \(24, 32\)"),
    ):
        save_file(tensors, file)
        with pytest.raises(DataError, match=said):
            import_hf(tmp_path / "theirs", tmp_path / "ours")
        assert not (tmp_path / "ours" / "step-00000000").exists()
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(DataError, match="model.safetensors cannot be read"):
        import_hf(tmp_path / "theirs", tmp_path / "ours")


def save_in_layout(place: Place, plan: Plan, start: Path, root: Path) -> None:
    """Save the weights of a checkpoint as a trainer of this layout holds them."""
    mesh = Mesh.connect(plan.layout, place.rank, place.world_size, ends=plan.ends)
    trainer = Trainer(plan, mesh, seed=1, rule=RULE)
    begin_with(trainer, Checkpoint.open(start))
    save_state(trainer, root, 1)


LAYOUTS: dict[str, dict[str, Any]] = {
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
    "sharded": {"data": 2, "zero": 3},
    "expert": {"data": 2, "expert": 2, "zero": 0},
    "expert, sharded": {"data": 4, "expert": 2, "zero": 1},
    "expert over context, and tensor": {"context": 2, "expert": 2, "tensor": 2, "zero": 2},
    "expert, and pipeline": {"data": 3, "expert": 3, "pipeline": 2, "zero": 1},
}


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=[] if name == "expert" else pytest.mark.broad) for name in LAYOUTS]
)
def test_checkpoint_of_any_layout_is_exported_with_all_experts(tmp_path: Path, layout: str) -> None:
    theirs("qwen2-moe", tmp_path / "theirs")
    start = import_hf(tmp_path / "theirs", tmp_path / "ours")
    shape = {**to_tree(Checkpoint.open(start).plan.model), "vocabulary_multiple": 2}
    plan = small(model=shape, batch={"sequences": 12, "micro": 1}, precision={"weights": "fp64"}, **LAYOUTS[layout])
    on_ranks(plan.layout.world_size, save_in_layout, plan, start, tmp_path / "saved")
    export_hf(Checkpoint.open(tmp_path / "saved" / "step-00000001"), tmp_path / "back", tokenizer=None)
    assert_equal_folders(tmp_path / "theirs", tmp_path / "back")
