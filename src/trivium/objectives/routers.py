"""The auxiliary losses of routers, and their derivatives by the router's logits.

balance_loss rewards an even load: a E sum of f_e P_e, with f_e the tokens that chose expert e, divided by k times the
tokens, and P_e the mean probability of e (arXiv 2101.03961). Loads are constant in the gradient. router_z_loss is c
times the mean of the squared log-sum-exp of the logits (arXiv 2202.08906).
"""

from typing import TYPE_CHECKING, Any

from trivium.plan.experts import Experts
from trivium.plan.layers.part import Number
from trivium.plan.model_shape import ModelShape

if TYPE_CHECKING:
    from torch import Tensor

BALANCE_LOSS, ROUTER_Z_LOSS = "balance_loss", "router_z_loss"  # among the losses of a step, and in metrics.jsonl


def router_loss_names(model: ModelShape) -> tuple[str, ...]:
    """Return the names of the losses of a model's routers."""
    every = model.experts_by_layer.values()
    balanced, near_zero = any(e.balance_loss for e in every), any(e.router_z_loss for e in every)
    return (BALANCE_LOSS,) * balanced + (ROUTER_Z_LOSS,) * near_zero


def counts_first(model: ModelShape, stages: Number, micro_batches: Number) -> Any:
    """Return whether a forward pass counts loads before the step, because a backward needs those of later micro-batches
    or of other stages; arrays give an array. micro_batches: of a replica."""
    found: Any = False
    for e in model.experts_by_layer.values():
        whole = e.balance_scope == "global_batch" and e.balance_loss > 0
        pooled = e.balance_convention == "transformers" and e.balance_loss > 0
        found = found | (whole & (micro_batches > 1)) | (pooled & (stages > 1))
    return found


def balance_factor(experts: Experts, layers: int) -> float:
    """Return the factor of sum of f_e P_e of one layer. layers: number of layers with experts in the model, over which
    transformers averages loads and probabilities; its loads sum to k."""
    factor = experts.balance_loss * experts.count
    return factor if experts.balance_convention == "megatron" else factor * experts.chosen / layers


def probabilities(experts: Experts, scores: "Tensor") -> "Tensor":
    """Return the probability of each expert, [..., E]: the scores, divided by their sum if they are sigmoids."""
    return scores if experts.scores == "softmax" else scores / scores.sum(-1, keepdim=True)


def slope_of_balance(experts: Experts, logits: "Tensor", weights: "Tensor") -> "Tensor":
    """Return the derivative of sum of weights_e p_e by the logits [..., E] of each token, with its probabilities p."""
    if experts.scores == "softmax":
        p = logits.softmax(-1)
        return p * (weights - (weights * p).sum(-1, keepdim=True))
    scores = logits.sigmoid()
    p = scores / scores.sum(-1, keepdim=True)
    return p * (1 - scores) * (weights - (weights * p).sum(-1, keepdim=True))


def slope_of_z(logits: "Tensor") -> "Tensor":
    """Return the derivative of the squared log-sum-exp by the logits [..., E]."""
    return 2 * logits.logsumexp(-1, keepdim=True) * logits.softmax(-1)
