"""Adapters of PEFT: equal logits and gradients, and folders both ways."""

import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from interchange.all_in_fp64 import all_in_fp64
from trivium.checkpoint.load import Checkpoint
from trivium.errors import CheckpointError, ConfigError, DataError
from trivium.interchange import peft as peft_folder
from trivium.interchange.bring import import_hf
from trivium.interchange.merge import adapted_layers, merge, unmerge
from trivium.interchange.names import family_of
from trivium.interchange.peft import CONFIG, WEIGHTS, _linear_twins, _of_columns, export_peft, with_adapters
from trivium.interchange.peft_experts import stacks
from trivium.model.inputs import Inputs
from trivium.model.whole import WholeModel
from trivium.plan.parameters import Box

peft = pytest.importorskip("peft", reason="peft is in the dev extra")
transformers = pytest.importorskip("transformers", reason="transformers is in the dev extra")

SIZES = {"vocab_size": 41, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}
LLAMA = {**SIZES, "num_key_value_heads": 2, "max_position_embeddings": 16}
GPT2 = {"vocab_size": 41, "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16, "resid_pdrop": 0, "embd_pdrop": 0,
        "attn_pdrop": 0, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", LLAMA),
    "gpt2": ("GPT2", GPT2),
    "neox": (
        "GPTNeoX",
        {**SIZES, "hidden_size": 32, "max_position_embeddings": 16, "hidden_dropout": 0.0, "attention_dropout": 0.0},
    ),
    "qwen2": ("Qwen2", LLAMA),
    "mixtral": ("Mixtral", {**LLAMA, "num_local_experts": 4}),
    "qwen2_moe": (
        "Qwen2Moe",
        {
            **LLAMA,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
            "shared_expert_intermediate_size": 20,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3",
        {
            **LLAMA,
            "num_key_value_heads": 4,
            "num_hidden_layers": 3,
            "q_lora_rank": 6,
            "kv_lora_rank": 5,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2",
        {
            **LLAMA,
            "num_key_value_heads": 4,
            "q_lora_rank": None,
            "kv_lora_rank": 6,
            "qk_nope_head_dim": 6,
            "qk_rope_head_dim": 4,
            "v_head_dim": 5,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 0,
        },
    ),
    "phi3": ("Phi3", {**LLAMA, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}),
}
ALL = "all-linear"
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
TOKENS = torch.randint(0, 41, (3, 12), generator=torch.Generator().manual_seed(3))


def logits_there(model: Any) -> torch.Tensor:
    with torch.no_grad(), all_in_fp64():
        found: torch.Tensor = model(TOKENS).logits
    return found


def base_model(name: str, folder: Path) -> Any:
    """A random base in fp64, saved in `folder`."""
    kind, sizes = BASES[name]
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**{"initializer_range": 0.3, **sizes})
    config._attn_implementation = config._experts_implementation = "eager"
    suffix = "LMHeadModel" if name == "gpt2" else "ForCausalLM"
    with all_in_fp64():
        model = getattr(transformers, f"{kind}{suffix}")(config).double().eval()
    model.save_pretrained(folder)
    return model


def with_random_adapters(base: Any, **more: Any) -> Any:
    """The base with adapters that change what it computes, DoRA's magnitudes included."""
    config = peft.LoraConfig(**{"r": 3, "lora_alpha": 5, "target_modules": ALL, "task_type": "CAUSAL_LM", **more})
    model = peft.get_peft_model(base, config).double().eval()
    generator = torch.Generator().manual_seed(2)
    for key, p in model.named_parameters():
        if "lora_" in key:
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.data = p.data * (1 + 0.1 * noise) if "magnitude" in key else 0.3 * noise
    return model


def loaded(path: Path) -> WholeModel:
    source = Checkpoint.open(path)
    model = WholeModel(source.plan.model, precision="fp64")
    for name in source.names:
        shape = tuple(source.manifest["tensors"][name]["shape"])
        model.load(name.removeprefix("weights/"), source.read(name, Box((0,) * len(shape), shape), torch.float64))
    return model


def logits(path: Path) -> torch.Tensor:
    return loaded(path).logits(TOKENS.tolist())


CASES = [
    ("llama", {}),
    ("llama", {"use_rslora": True, "target_modules": ["q_proj", "v_proj", "down_proj"]}),
    ("llama", {"rank_pattern": {"q_proj": 5, "layers.1.mlp.up_proj": 1}, "alpha_pattern": {r".*\.v_proj": 7}}),
    ("llama", {"use_dora": True}),
    ("gpt2", {"target_modules": ["c_attn", "attn.c_proj", "c_fc"]}),
    ("gpt2", {"use_dora": True, "target_modules": ["c_attn", "mlp.c_proj"]}),
    ("neox", {"target_modules": ["query_key_value", "dense_4h_to_h"]}),
    ("qwen2", {"target_modules": ["k_proj"], "layers_to_transform": [1]}),
    ("phi3", {"target_modules": ["qkv_proj", "gate_up_proj"]}),
    ("mixtral", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}),
    ("qwen2_moe", {"target_modules": ["q_proj", "k_proj", "v_proj"], "use_dora": True}),
    ("qwen2_moe", {"target_modules": ALL}),
    ("qwen2_moe", {"target_parameters": EXPERTS, "use_rslora": True}),
    ("mixtral", {"target_modules": ["v_proj"], "target_parameters": EXPERTS, "rank_pattern": {"experts.down_proj": 2}}),
    ("mixtral", {"target_modules": [], "target_parameters": EXPERTS[1:]}),
    ("deepseek_v3", {"target_modules": ["q_b_proj"], "target_parameters": EXPERTS}),
    ("deepseek_v3", {"target_modules": ["q_a_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"], "use_dora": True}),
    ("deepseek_v2", {"target_modules": ["q_proj", "kv_b_proj"], "target_parameters": EXPERTS[:1]}),
]


@pytest.mark.parametrize(("name", "settings"), CASES, ids=lambda x: str(x)[:60])
def test_folder_of_peft_computes_the_same_here_and_again_there(name: str, settings: dict, tmp_path: Path) -> None:
    there = with_random_adapters(base_model(name, tmp_path / "base"), **settings)
    there.save_pretrained(tmp_path / "peft")
    base = import_hf(tmp_path / "base", tmp_path / "imported")
    path = with_adapters(Checkpoint.open(base), tmp_path / "peft", tmp_path / "adapted")
    expected = logits_there(there)
    scale = float(expected.abs().max())
    assert float((expected - logits(base)).abs().max()) > 0.1 * scale
    torch.testing.assert_close(logits(path), expected, rtol=0, atol=1e-10 * scale)
    written = export_peft(Checkpoint.open(path), tmp_path / "written")
    again, first = load_file(written / WEIGHTS), load_file(tmp_path / "peft" / WEIGHTS)
    assert {k: v.shape for k, v in again.items()} == {k: v.shape for k, v in first.items()}
    back = peft.PeftModel.from_pretrained(base_model(name, tmp_path / "base"), written).double().eval()
    torch.testing.assert_close(logits_there(back), expected, rtol=0, atol=1e-10 * scale)
    merged = merge(Checkpoint.open(path), tmp_path / "merged")
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=1e-10 * scale)
    if not settings.get("use_dora"):
        bare = unmerge(Checkpoint.open(merged), Checkpoint.open(path), tmp_path / "bare")
        torch.testing.assert_close(logits(bare), logits(base), rtol=0, atol=1e-10 * scale)


def test_an_adapter_that_is_lost_at_export_changes_what_peft_computes(tmp_path: Path, monkeypatch) -> None:
    """The law above can fail: a folder without one of its adapters loads, and computes something else."""
    base, folder = _llama(tmp_path)
    path = with_adapters(base, folder, tmp_path / "adapted")
    add = peft_folder._Written.add

    def lose(self: Any, each: Any, added: Any, twin: Any, *more: Any) -> None:
        if not twin.ours.name.startswith("layers.1.mlp.down"):
            add(self, each, added, twin, *more)

    monkeypatch.setattr(peft_folder._Written, "add", lose)
    written = export_peft(Checkpoint.open(path), tmp_path / "written")
    back = peft.PeftModel.from_pretrained(base_model("llama", tmp_path / "base"), written).double().eval()
    assert float((logits_there(back) - logits(path)).abs().max()) > 1e-3


@pytest.mark.parametrize(("name", "dora"), [
    ("llama", False), ("llama", True), ("gpt2", False), ("neox", True), ("deepseek_v3", False), ("mixtral", False),
])  # fmt: skip
def test_gradient_of_every_adapter_is_that_of_peft(name: str, dora: bool, tmp_path: Path) -> None:
    """Gradients are in fp64. If B is block-diagonal, its blocks have the gradients of PEFT's B."""
    targets = {
        "gpt2": {"target_modules": ["c_attn", "c_proj", "c_fc"]},
        "deepseek_v3": {"target_modules": ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"]},
        "mixtral": {"target_modules": ["o_proj"], "target_parameters": EXPERTS},
    }.get(name, {})
    there = with_random_adapters(base_model(name, tmp_path / "base"), use_dora=dora, **targets)
    there.save_pretrained(tmp_path / "peft")
    base = Checkpoint.open(import_hf(tmp_path / "base", tmp_path / "imported"))
    path = with_adapters(base, tmp_path / "peft", tmp_path / "adapted")
    with all_in_fp64():
        loss = there(TOKENS, labels=TOKENS).loss
        loss.backward()
    gradients = {k: p.grad for k, p in there.named_parameters() if "lora_" in k}
    here = loaded(path)
    given = Inputs(TOKENS[:, :-1].T, TOKENS[:, 1:].T)
    ours = here.stage(None, given)["loss"] / given.targets.numel()
    torch.testing.assert_close(ours, loss, rtol=1e-10, atol=0)
    ours.backward()
    found = in_names_of_peft(here, Checkpoint.open(path))
    assert found.keys() == {key.replace(".default", "").removesuffix(".weight") for key in gradients}
    largest = float(max(g.abs().max() for g in gradients.values()))
    for key, expected in gradients.items():
        ours = found[key.replace(".default", "").removesuffix(".weight")]
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-10 * largest, msg=key)


def in_names_of_peft(here: WholeModel, source: Checkpoint) -> dict[str, torch.Tensor]:
    """The gradients of a model's adapters, each cut into those of the matrices that are stored together."""
    bare = source.plan.model.model_copy(update={"adapters": ()})
    family, found = family_of(bare), {}
    adapted = adapted_layers(source)
    for stack in stacks(bare, family):
        if stack.row.name in adapted:
            number, each = adapted[stack.row.name]
            at = here.stage.layers[str(number)].get_submodule(each.linear).adapter
            key = f"base_model.model.{stack.places['.up' not in each.linear]}"
            found[f"{key}.lora_A"] = at.get_parameter("a").grad.flatten(0, 1)
            found[f"{key}.lora_B"] = at.get_parameter("b").grad.flatten(1, -2).permute(1, 2, 0).flatten(1)
    for twin in _linear_twins(bare, family):
        if twin.ours.name not in adapted:
            continue
        number, each = adapted[twin.ours.name]
        at = here.stage.layers[str(number)].get_submodule(each.linear).adapter
        a, b = at.get_parameter("a"), at.get_parameter("b")
        columns = _of_columns(twin, len(a), family, bare)
        for n, name in enumerate(twin.theirs):
            used = columns.to_hf(b.detach())[n].any(dim=0)
            key = f"base_model.model.{name.removesuffix('.weight')}"
            found[f"{key}.lora_A"], found[f"{key}.lora_B"] = a.grad[used], columns.to_hf(b.grad)[n][:, used]
            if "m" in dict(at.named_parameters()):
                m = _of_columns(twin, 1, family, bare).to_hf(at.get_parameter("m").grad.unsqueeze(-1))[n]
                found[f"{key}.lora_magnitude_vector"] = m.squeeze(-1)
    return found


def test_an_adapter_for_each_expert_computes_what_peft_makes_of_it(tmp_path: Path) -> None:
    """Folders from before transformers had one parameter for all experts. An expert may lack an adapter."""
    names = ("w1", "w2", "w3")
    base_model("mixtral", tmp_path / "base")
    config = peft.LoraConfig(r=3, lora_alpha=5, target_modules=list(names), task_type="CAUSAL_LM", lora_dropout=0.0)
    config.save_pretrained(tmp_path / "peft")
    generator, tensors = torch.Generator().manual_seed(2), {}
    for layer, expert, name in itertools.product(range(2), range(4), names):
        outputs, inputs = (24, 40) if name == "w2" else (40, 24)
        key = f"base_model.model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}"
        for part, shape in (("A", (3, inputs)), ("B", (outputs, 3))):
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            tensors[f"{key}.lora_{part}.weight"] = 0.3 * drawn
    save_file(tensors, tmp_path / "peft" / WEIGHTS)
    base = Checkpoint.open(import_hf(tmp_path / "base", tmp_path / "imported"))
    path = with_adapters(base, tmp_path / "peft", tmp_path / "adapted")
    there = peft.PeftModel.from_pretrained(base_model("mixtral", tmp_path / "base"), tmp_path / "peft")
    expected = logits_there(there.double().eval())
    torch.testing.assert_close(logits(path), expected, rtol=0, atol=1e-10 * float(expected.abs().max()))
    few = {key: values for key, values in tensors.items() if ".experts.2.w" not in key and ".experts.1.w1" not in key}
    zeros = {key: values * (key in few) for key, values in tensors.items()}
    found = []
    for number, each in enumerate((few, zeros)):
        save_file(each, tmp_path / "peft" / WEIGHTS)
        found.append(logits(with_adapters(base, tmp_path / "peft", tmp_path / f"{number}")))
    torch.testing.assert_close(*found, rtol=0, atol=1e-12)
    assert float((found[0] - expected).abs().max()) > 1e-3


def test_dora_of_each_expert_computes_what_its_definition_says(tmp_path: Path) -> None:
    """PEFT has none beside the parameters of transformers, so that merged weights are computed here."""
    there = base_model("mixtral", tmp_path / "base")
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 5, "use_dora": True, "base_model_name_or_path": "base"}
    generator, tensors = torch.Generator().manual_seed(2), {}
    for layer, expert, name in itertools.product(range(2), range(4), ("w1", "w2", "w3")):
        matrices = there.model.layers[layer].mlp.experts
        w = {"w1": matrices.gate_up_proj[expert][:40], "w3": matrices.gate_up_proj[expert][40:]}.get(name)
        w = (matrices.down_proj[expert] if w is None else w).data
        a, b, m = (
            torch.randn(shape, generator=generator, dtype=torch.float64)
            for shape in ((3, w.shape[1]), (len(w), 3), (len(w),))
        )
        key = f"base_model.model.model.layers.{layer}.block_sparse_moe.experts.{expert}.{name}"
        parts = {"lora_A.weight": a, "lora_B.weight": b, "lora_magnitude_vector": m}
        tensors |= {f"{key}.{part}": values for part, values in parts.items()}
        whole = w + 5 / 3 * b @ a
        w.copy_(m[:, None] * whole / whole.norm(dim=1, keepdim=True))
    expected = logits_there(there)
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / CONFIG).write_text(json.dumps(config))
    save_file(tensors, tmp_path / "peft" / WEIGHTS)
    base = Checkpoint.open(import_hf(tmp_path / "base", tmp_path / "imported"))
    path = with_adapters(base, tmp_path / "peft", tmp_path / "adapted")
    torch.testing.assert_close(logits(path), expected, rtol=0, atol=1e-10 * float(expected.abs().max()))
    merged = merge(Checkpoint.open(path), tmp_path / "merged")
    torch.testing.assert_close(logits(merged), expected, rtol=0, atol=1e-10 * float(expected.abs().max()))
    with pytest.raises(ConfigError, match="kind 'dora', whose merged weights no longer tell the norms"):
        unmerge(Checkpoint.open(merged), Checkpoint.open(path), tmp_path / "bare")
    with pytest.raises(ConfigError, match=r"dora beside layers.0.mlp.experts.up.weight, .*trivium checkpoint merge"):
        export_peft(Checkpoint.open(path), tmp_path / "written")
    save_file({k: v for k, v in tensors.items() if ".experts.2.w1" not in k}, tmp_path / "peft" / WEIGHTS)
    with pytest.raises(DataError, match="DoRA is on some of the experts' modules"):
        with_adapters(base, tmp_path / "peft", tmp_path / "other")
    key = "base_model.model.model.layers.0.mlp.experts"
    save_file({f"{key}.{part}": torch.zeros(1, 1) for part in ("lora_A.weight", "lora_B.weight")},
              tmp_path / "peft" / WEIGHTS)  # fmt: skip
    with pytest.raises(DataError, match=r"use_dora is true, and .*experts.gate_up_proj is in target_parameters"):
        with_adapters(base, tmp_path / "peft", tmp_path / "other")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bias": "all"}, "bias is 'all', and this engine computes 'none'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"peft_type": "VERA"}, "peft_type is 'VERA'"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4', which changes the weights"),
        ({"alpha_pattern": {"(a+)+b": 3}}, "has a repeated group"),
        ({"r": 4}, "has rank 4 and alpha 5, and its tensors have rank 3"),
        ({"lora_alpha": "5"}, "alpha '5'"),
        ({"lora_dropout": 1.5}, "lora_dropout is 1.5"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_folder_that_computes_something_else_is_refused(change: dict, told: str, tmp_path: Path) -> None:
    base, folder = _llama(tmp_path)
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **change}))
    with pytest.raises(DataError, match=re.escape(told)):
        with_adapters(base, folder, tmp_path / "out")


def test_folder_for_another_model_is_refused(tmp_path: Path) -> None:
    base, folder = _llama(tmp_path)
    tensors = load_file(folder / WEIGHTS)
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    for changed, told in (
        ({**tensors, key: tensors[key][:, :-1]}, "is \\(3, 23\\), and for the base it must be \\(3, 24\\)"),
        ({k: v for k, v in tensors.items() if k != key}, "and must have lora_A.weight, lora_B.weight"),
        ({**tensors, key.replace("layers.0", "layers.7"): tensors[key]}, "1 tensors of no linear layer"),
    ):
        save_file({k: v.clone() for k, v in changed.items()}, folder / WEIGHTS)
        with pytest.raises(DataError, match=told):
            with_adapters(base, folder, tmp_path / "out")


def test_adapter_of_a_router_is_refused_by_name(tmp_path: Path) -> None:
    there = with_random_adapters(base_model("mixtral", tmp_path / "base"), target_parameters=["mlp.gate.weight"])
    there.save_pretrained(tmp_path / "peft")
    base = Checkpoint.open(import_hf(tmp_path / "base", tmp_path / "imported"))
    with pytest.raises(DataError, match=r"4 tensors of no linear layer .* first '.*\.mlp\.gate\..*not on routers"):
        with_adapters(base, tmp_path / "peft", tmp_path / "adapted")


def test_dora_on_some_of_queries_keys_and_values_is_refused(tmp_path: Path) -> None:
    there = with_random_adapters(base_model("llama", tmp_path / "base"), target_modules=["q_proj", "v_proj"],
                                 use_dora=True)  # fmt: skip
    there.save_pretrained(tmp_path / "peft")
    base = Checkpoint.open(import_hf(tmp_path / "base", tmp_path / "imported"))
    with pytest.raises(DataError, match=r"DoRA is on some of .*q_proj, .*k_proj, .*v_proj, and not on all"):
        with_adapters(base, tmp_path / "peft", tmp_path / "adapted")


def test_adapters_that_were_written_here_are_refused_beside_another_base(tmp_path: Path) -> None:
    base, folder = _llama(tmp_path)
    path = with_adapters(base, folder, tmp_path / "adapted")
    written = export_peft(Checkpoint.open(path), tmp_path / "written")
    with_adapters(base, written, tmp_path / "again")
    other = merge(Checkpoint.open(path), tmp_path / "merged")
    with pytest.raises(CheckpointError, match="was trained on a base whose weights have sha256"):
        with_adapters(Checkpoint.open(other), written, tmp_path / "wrong")
    with pytest.raises(ConfigError, match="has no adapters"):
        export_peft(base, tmp_path / "none")


def _llama(tmp_path: Path) -> tuple[Checkpoint, Path]:
    """A base as a checkpoint, and a PEFT folder for it."""
    with_random_adapters(base_model("llama", tmp_path / "base")).save_pretrained(tmp_path / "peft")
    return Checkpoint.open(import_hf(tmp_path / "base", tmp_path / "imported")), tmp_path / "peft"
