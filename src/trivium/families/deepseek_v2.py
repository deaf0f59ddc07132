"""DeepSeek-V2 and -V2-Lite (arXiv 2405.04434)."""

from types import MappingProxyType

from trivium.errors import DataError
from trivium.families.common.deepseek import deepseek
from trivium.families.common.experts import Mixture
from trivium.families.common.family import Config, Tree
from trivium.plan.experts import Experts

GREEDY, IN_GROUPS = "greedy", "group_limited_greedy"


def _read(config: Config, where: str) -> Tree:
    if config["topk_method"] == GREEDY:
        return {}
    for field in ("n_group", "topk_group"):
        if config.get(field) is None:
            raise DataError(f"{where}: {field} is None, and topk_method '{IN_GROUPS}' needs it")
    return {"groups": config["n_group"], "chosen_groups": config["topk_group"]}


def _write(experts: Experts) -> Tree:
    return {
        "topk_method": GREEDY if experts.groups == 1 else IN_GROUPS,
        "n_group": experts.groups,
        "topk_group": experts.chosen_groups,
        "norm_topk_prob": False,
    }


FAMILY = deepseek(
    "DeepseekV2ForCausalLM",
    "deepseek_v2",
    Mixture(
        "n_routed_experts",
        fields=MappingProxyType({"scale": "routed_scaling_factor"}),
        must=MappingProxyType({"normalized": False}),
        converted=("groups", "chosen_groups"),
        read=_read,
        write=_write,
    ),
    unsaid=MappingProxyType(
        {
            "first_k_dense_replace": 0,
            "n_routed_experts": 64,
            "n_shared_experts": 2,
            "moe_intermediate_size": 1407,
            "routed_scaling_factor": 1.0,
            "topk_method": GREEDY,
        }
    ),
    must=MappingProxyType(
        {"norm_topk_prob": (False, None), "scoring_func": ("softmax",), "topk_method": (GREEDY, IN_GROUPS)}
    ),
    interleaves=False,
)
