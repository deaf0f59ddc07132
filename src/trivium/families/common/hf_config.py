"""The kinds of value that a Hugging Face config.json may have in the fields that are read here."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, ConfigDict, Field

from trivium.config import Config, NotNegative, Positive, build
from trivium.errors import ConfigError, DataError
from trivium.plan.sizes import Layers
from trivium.units import shown
from trivium.untrusted import read_json

ADAPTER_CONFIG = "adapter_config.json"  # of a folder of PEFT

Tree = dict[str, Any]


def _ids(value: Any) -> Any:
    if value is not None and not all(type(one) is int for one in (value if isinstance(value, list) else [value])):
        raise ValueError("it must be a token id or a list of token ids, whole numbers without quotes")
    return value


Ids = Annotated[Any, AfterValidator(_ids)]


class HfConfig(Config):
    """Fields of GPT2Config, LlamaConfig and those derived from it; null stands for a default, and others may stand
    beside them."""

    model_config = ConfigDict(extra="allow")
    remedy: ClassVar[str] = "download the folder again"

    vocab_size: Positive | None = None
    n_layer: Layers | None = None
    n_embd: Positive | None = None
    n_head: Positive | None = None
    n_positions: Positive | None = None
    n_inner: Positive | None = None
    num_hidden_layers: Layers | None = None
    hidden_size: Positive | None = None
    num_attention_heads: Positive | None = None
    num_key_value_heads: Positive | None = None
    intermediate_size: Positive | None = None
    max_position_embeddings: Positive | None = None
    original_max_position_embeddings: Positive | None = None
    head_dim: Positive | None = None
    sliding_window: NotNegative | None = None  # transformers writes 0 where Qwen2-MoE uses none
    max_window_layers: NotNegative | None = None
    use_sliding_window: bool | None = None
    sliding_window_pattern: Positive | None = None
    num_experts: Positive | None = None
    num_local_experts: Positive | None = None
    n_routed_experts: Positive | None = None
    num_experts_per_tok: Positive | None = None
    moe_intermediate_size: Positive | None = None
    shared_expert_intermediate_size: NotNegative | None = None
    n_shared_experts: NotNegative | None = None
    norm_topk_prob: bool | None = None
    router_aux_loss_coef: Annotated[float, Field(ge=0)] | None = None
    router_jitter_noise: float | None = None
    mlp_only_layers: tuple[NotNegative, ...] | None = None
    decoder_sparse_step: Positive | None = None
    first_k_dense_replace: NotNegative | None = None
    n_group: Positive | None = None
    topk_group: Positive | None = None
    num_nextn_predict_layers: NotNegative | None = None
    qk_nope_head_dim: Positive | None = None
    qk_rope_head_dim: Positive | None = None
    rope_interleave: bool | None = None
    routed_scaling_factor: float | None = None
    qkv_bias: bool | None = None
    clip_qkv: float | None = None
    layer_types: tuple[str, ...] | None = None
    activation_function: str | None = None
    hidden_act: str | None = None
    layer_norm_epsilon: float | None = None
    rms_norm_eps: float | None = None
    query_pre_attn_scalar: Annotated[float, Field(gt=0)] | None = None
    logits_scaling: Annotated[float, Field(gt=0)] | None = None
    initializer_range: float | None = None
    resid_pdrop: float | None = None
    rope_theta: Annotated[float, Field(gt=0)] | None = None
    rotary_emb_base: Annotated[float, Field(gt=0)] | None = None
    rope_local_base_freq: Annotated[float, Field(gt=0)] | None = None
    partial_rotary_factor: float | None = None
    rope_scaling: Tree | None = None
    rope_parameters: Tree | None = None
    tie_word_embeddings: bool | None = None
    attention_bias: bool | None = None
    mlp_bias: bool | None = None
    use_parallel_residual: bool | None = None
    scale_attn_weights: bool | None = None
    scale_attn_by_inverse_layer_idx: bool | None = None
    add_cross_attention: bool | None = None
    bos_token_id: Ids = None
    eos_token_id: Ids = None
    pad_token_id: Ids = None


def refuse_other_kinds(config: Mapping[str, Any], where: str) -> None:
    """Raise DataError, with field and value, where one is of another kind, such as true or "2" for a number."""
    try:
        build(HfConfig, config)
    except ConfigError as error:
        problems = "; ".join(str(error).split("\n"))
        raise DataError(f"{where}: {problems}; correct the file, or download the folder again") from None


def read_settings(path: Path) -> Tree:
    """Return the object in a JSON file of a Hugging Face folder. Raises DataError where there is none."""
    try:
        found = read_json(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}; name a Hugging Face folder") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read as JSON: {error}; download it again") from None
    if not isinstance(found, dict):
        raise DataError(f"{path} holds {shown(repr(found))}, not settings by name; name a Hugging Face folder")
    return found


def describes_model(folder: Path) -> bool:
    """Whether a folder has the config.json of a Hugging Face model, with or without its weights."""
    path = folder / "config.json"
    try:
        found = read_json(path) if path.is_file() else None
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and "architectures" in found


def is_adapter_folder(folder: Path) -> bool:
    """Whether a folder has an adapter of PEFT."""
    return (folder / ADAPTER_CONFIG).is_file()


def is_model_folder(folder: Path) -> bool:
    """Whether a folder holds a model of Hugging Face, weights included."""
    return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
