"""The models of benchmarks/experts.py: two blocks of experts as in Mixtral or DeepSeek-V3, and a small table of ids."""

from pathlib import Path

import torch
from setting import Setting
from transformers import DeepseekV3Config, MixtralConfig, PretrainedConfig

SEED, LAYERS, VOCABULARY = 11, 2, 256
HEAD_COLUMNS = 32
MIXTRAL, DEEPSEEK = "mixtral", "deepseek"


def config_of(kind: str, setting: Setting) -> PretrainedConfig:
    """Return the configuration of a kind, whose sizes are in proportion to the hidden size."""
    hidden, heads = setting.hidden, setting.hidden // HEAD_COLUMNS
    shared = {
        "vocab_size": VOCABULARY,
        "hidden_size": hidden,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads,
        "max_position_embeddings": setting.sequence,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 0,
    }
    if kind == MIXTRAL:
        experts = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 7 * hidden // 2}
        return MixtralConfig(**shared, **experts, num_key_value_heads=heads // 4, router_aux_loss_coef=0.0)
    return DeepseekV3Config(
        **shared,
        num_key_value_heads=heads,
        q_lora_rank=None,
        kv_lora_rank=hidden // 4,
        qk_nope_head_dim=HEAD_COLUMNS,
        qk_rope_head_dim=HEAD_COLUMNS // 2,
        v_head_dim=HEAD_COLUMNS,
        n_routed_experts=64,
        num_experts_per_tok=8,
        n_group=8,
        topk_group=4,
        n_shared_experts=1,
        moe_intermediate_size=hidden // 4,
        intermediate_size=hidden,
        first_k_dense_replace=0,
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
    )


def saved(kind: str, setting: Setting, folder: Path) -> Path:
    """Write a model with random weights as a Hugging Face folder, and return it."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(SEED)
    AutoModelForCausalLM.from_config(config_of(kind, setting), dtype=torch.float32).save_pretrained(folder)
    return folder
