"""Mistral: Llama's blocks with a window in every layer, or in those that `layer_types` names, as in Ministral."""

from trivium.families.common.llama_like import llama_like
from trivium.families.ministral import FAMILY as MINISTRAL

FAMILY = llama_like("MistralForCausalLM", "mistral", windows="sized", unsaid=MINISTRAL.unsaid)._replace(
    read=MINISTRAL.read
)
