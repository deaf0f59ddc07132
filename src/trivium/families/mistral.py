"""Mistral: Llama's blocks with a window in every layer, or in those that `layer_types` names, as in Ministral."""

from functools import partial
from types import MappingProxyType

from trivium.families.common.llama_like import llama_like

_mistral = partial(
    llama_like,
    "MistralForCausalLM",
    "mistral",
    unsaid=MappingProxyType({"num_key_value_heads": 8, "sliding_window": 4096}),
)
FAMILY = _mistral(windows="sized")._replace(read=_mistral(windows="typed").read)
