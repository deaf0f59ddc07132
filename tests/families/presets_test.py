"""The presets of families have the sizes that their sources publish."""

from typing import Any

import pytest

from trivium.config import about_preset, preset_names, read_preset, shipped_names
from trivium.interchange.names import shape_of
from trivium.plan.parameters import count, count_active, parameters
from trivium.plan.plan import Plan

PARAMETERS = {
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3-405b": 405_853_388_800,
    "qwen-2.5-0.5b": 494_032_768,
    "qwen-2.5-1.5b": 1_543_714_304,
    "qwen-2.5-3b": 3_085_938_688,
    "qwen-2.5-7b": 7_615_616_512,
    "qwen-2.5-14b": 14_770_033_664,
    "qwen-2.5-32b": 32_763_876_352,
    "qwen-2.5-72b": 72_706_203_648,
    "granite-3.0-2b": 2_533_531_648,
    "granite-3.0-8b": 8_170_848_256,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "smollm2-1.7b": 1_711_376_384,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen-3-0.6b": 596_049_920,
    "qwen-3-1.7b": 1_720_574_976,
    "qwen-3-4b": 4_022_468_096,
    "qwen-3-8b": 8_190_735_360,
    "qwen-3-14b": 14_768_307_200,
    "qwen-3-32b": 32_762_123_264,
    "olmo-2-1b": 1_484_916_736,
    "olmo-2-7b": 7_298_617_344,
    "olmo-2-13b": 13_716_198_400,
    "olmo-2-32b": 32_234_279_936,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mistral-nemo-12b": 12_247_782_400,
    "gemma-3-270m": 268_098_176,
    # The model cards' sizes with the embedding counted once.
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gemma-3-4b": 3_880_263_168,
    "gemma-3-12b": 11_766_034_176,
    "gemma-3-27b": 27_009_346_304,
}
# Mixtures of experts: all parameters, and those that a token uses. The totals are those of the weights on Hugging Face.
OF_EXPERTS = {
    "mixtral-8x7b": (46_702_792_704, 12_879_925_248),
    "olmoe-1b-7b": (6_919_161_856, 1_282_017_280),
    "qwen1.5-moe-a2.7b": (14_315_784_192, 2_689_173_504),
    "qwen3-30b-a3b": (30_532_122_624, 3_353_032_704),
    "deepseek-v2-lite": (15_706_484_224, 2_661_150_208),
    "deepseek-v2": (235_741_434_880, 21_375_800_320),
    "deepseek-v3": (671_026_419_200, 37_552_297_472),  # without the modules that predict several tokens
}
PARAMETERS |= {name: total for name, (total, _) in OF_EXPERTS.items()}
# Parameters of Pythia, in total and without embedding and head (EleutherAI/pythia, README).
PYTHIA = {
    "14m": (14_067_712, 1_189_888),
    "31m": (30_494_720, 4_739_072),
    "70m": (70_426_624, 18_915_328),
    "160m": (162_322_944, 85_056_000),
    "410m": (405_334_016, 302_311_424),
    "1b": (1_011_781_632, 805_736_448),
    "1.4b": (1_414_647_808, 1_208_602_624),
    "2.8b": (2_775_208_960, 2_517_652_480),
    "6.9b": (6_857_302_016, 6_444_163_072),
    "12b": (11_846_072_320, 11_327_027_200),
}
_DEEPSEEK: dict[str, Any] = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 163840,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-06,
    "moe_layer_freq": 1,
    "attention_bias": False,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
_YARN = {"beta_fast": 32, "beta_slow": 1, "factor": 40, "original_max_position_embeddings": 4096, "type": "yarn"}
COUNTED_ELSEWHERE = ("pythia-",)  # in PYTHIA
# The fields of the published config.json files that decide what a model computes.
CONFIGS: dict[str, dict[str, Any]] = {
    "deepseek-v2-lite": {
        **_DEEPSEEK,
        "architectures": ["DeepseekV2ForCausalLM"],
        "vocab_size": 102400,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "greedy",
        "scoring_func": "softmax",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "rope_scaling": {**_YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
    },
    "deepseek-v3": {
        **_DEEPSEEK,
        "architectures": ["DeepseekV3ForCausalLM"],
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "q_lora_rank": 1536,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
        "rope_scaling": {**_YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
    },
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": 12,
        "n_embd": 768,
        "n_head": 12,
        "n_positions": 1024,
        "layer_norm_epsilon": 1e-05,
        "resid_pdrop": 0.1,
        "vocab_size": 50257,
    },
    "llama-3.2-1b": {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 8192,
        "max_position_embeddings": 131072,
        "rope_theta": 500000.0,
        "vocab_size": 128256,
        "head_dim": 64,
        "rope_scaling": {
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": True,
    },
    "qwen-3-8b": {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 12288,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "vocab_size": 151936,
        "head_dim": 128,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
    },
    "olmo-2-7b": {
        "architectures": ["Olmo2ForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "intermediate_size": 11008,
        "max_position_embeddings": 4096,
        "rope_theta": 500000,
        "vocab_size": 100352,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
    },
    "mistral-7b-v0.1": {
        "architectures": ["MistralForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "rope_theta": 10000.0,
        "vocab_size": 32000,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "sliding_window": 4096,
    },
    "mistral-nemo-12b": {
        "architectures": ["MistralForCausalLM"],
        "num_hidden_layers": 40,
        "hidden_size": 5120,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 128000,
        "rope_theta": 1000000.0,
        "vocab_size": 131072,
        "head_dim": 128,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "sliding_window": None,
    },
    "gemma-3-270m": {
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 18,
        "hidden_size": 640,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "intermediate_size": 2048,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "vocab_size": 262144,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-06,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"],
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "rope_theta": 1000000.0,
        "vocab_size": 32000,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.02,
    },
    "olmoe-1b-7b": {
        "architectures": ["OlmoeForCausalLM"],
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 1024,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "vocab_size": 50304,
        "rms_norm_eps": 1e-05,
        "tie_word_embeddings": False,
        "clip_qkv": None,
        "norm_topk_prob": False,
        "num_experts": 64,
        "num_experts_per_tok": 8,
        "router_aux_loss_coef": 0.01,
    },
    "qwen1.5-moe-a2.7b": {
        "architectures": ["Qwen2MoeForCausalLM"],
        "num_hidden_layers": 24,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "intermediate_size": 5632,
        "max_position_embeddings": 8192,
        "rope_theta": 1000000.0,
        "vocab_size": 151936,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 1408,
        "norm_topk_prob": False,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "shared_expert_intermediate_size": 5632,
        "sliding_window": 32768,
        "use_sliding_window": False,
    },
    "qwen3-30b-a3b": {
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 6144,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000.0,
        "vocab_size": 151936,
        "head_dim": 128,
        "rms_norm_eps": 1e-06,
        "tie_word_embeddings": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "router_aux_loss_coef": 0.001,
        "use_sliding_window": False,
    },
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_preset_has_the_published_number_of_parameters(name: str) -> None:
    plan = Plan.from_preset(name)
    assert plan.check() == [] and count(plan.model) == PARAMETERS[name]


@pytest.mark.parametrize("name", OF_EXPERTS)
def test_a_preset_of_experts_has_the_published_number_of_active_parameters(name: str) -> None:
    assert count_active(Plan.from_preset(name).model) == OF_EXPERTS[name][1]


@pytest.mark.parametrize(("name", "billions"), [("deepseek-v3", 36.6), ("deepseek-v2", 21), ("deepseek-v2-lite", 2.4)])
def test_deepseek_counts_active_parameters_without_the_embedding(name: str, billions: float) -> None:
    """README_WEIGHTS.md of DeepSeek-V3 gives "36.6B (including 0.9B for the output head)"."""
    model = Plan.from_preset(name).model
    own = count_active(model) - model.vocabulary * model.hidden
    assert own / 1e9 == pytest.approx(billions, abs=0.06 if name == "deepseek-v2-lite" else 0.2)


@pytest.mark.parametrize("size", PYTHIA)
def test_each_preset_of_the_suite_has_its_published_size_and_schedule(size: str) -> None:
    plan, training = Plan.from_preset(f"pythia-{size}"), read_preset(f"pythia-{size}")["training"]
    total, inner = PYTHIA[size]
    assert plan.check() == [] and count(plan.model) == total
    tables = sum(p.elements for p in parameters(plan.model) if p.padded)
    assert total - tables == inner
    assert plan.tokens(plan.batch.sequences) == 2_097_152 and training["steps"] == 143_000
    assert training["warmup_tokens"] == 1430 * 2_097_152


def test_every_preset_of_a_family_is_counted() -> None:
    of_families = {name for name in preset_names() if name not in shipped_names("presets")}
    assert {name for name in of_families if not name.startswith(COUNTED_ELSEWHERE)} <= PARAMETERS.keys()


@pytest.mark.parametrize("name", CONFIGS)
def test_a_preset_has_the_settings_of_its_published_config(name: str) -> None:
    model = Plan.from_preset(name).model
    published = shape_of(CONFIGS[name], "config.json").model_copy(update={"sequence": model.sequence})
    assert model.of_weights() == published.of_weights()


def test_presets_for_gpus_are_compiled_and_recorded() -> None:
    """MT-NLG's preset is the plan of the paper, and the demo is for CPUs. Experts and a dynamic loss scale exclude CUDA
    graphs."""
    for name in set(preset_names()) - {"demo", "mt-nlg-530b"}:
        plan = Plan.from_preset(name)
        recorded = plan.precision.weights != "fp16" and not plan.model.expert_counts
        assert plan.compiled and plan.cuda_graphs is recorded, name
        assert plan.check() == [], name


def test_license_and_context_are_inherited_by_presets() -> None:
    assert about_preset("llama-3.1-8b") == {"license": "llama3.1", "context": 131072}
    assert about_preset("qwen-2.5-3b")["license"] == "qwen-research"
    assert about_preset("demo") == {} and "about" not in read_preset("llama-3-8b")


def test_presets_of_families_are_listed_with_the_others() -> None:
    assert {"demo", "llama-3-8b"} <= set(preset_names())
