"""Feed-forward halves of experts from their definitions, for the readings of exported folders.

Legend: T tokens, H hidden, E experts, K chosen ones.
"""

import torch
import torch.nn.functional as F

from trivium.families.common.family import Config, Tensors

Tensor = torch.Tensor


def mixture(config: Config, tensors: Tensors, x: Tensor, at: str) -> Tensor:
    """x [..., H] -> [..., H]. at: the name of the layer."""
    (get, names), flat = tensors, x.flatten(0, -2)
    mixtral = f"{at}.block_sparse_moe.gate.weight" in names
    at, (gate, up, down) = (
        (f"{at}.block_sparse_moe", ("w1", "w3", "w2"))
        if mixtral
        else (f"{at}.mlp", ("gate_proj", "up_proj", "down_proj"))
    )

    def gated(y: Tensor, of: str, gate: str = "gate_proj", up: str = "up_proj", down: str = "down_proj") -> Tensor:
        inner = F.silu(y @ get(f"{of}.{gate}.weight").T) * (y @ get(f"{of}.{up}.weight").T)
        return inner @ get(f"{of}.{down}.weight").T

    weights, chosen = _routed(config, tensors, flat @ get(f"{at}.gate.weight").T, f"{at}.gate")
    total = torch.zeros_like(flat)
    for expert in torch.unique(chosen).tolist():
        token, place = (chosen == expert).nonzero().T
        total[token] += weights[token, place, None] * gated(flat[token], f"{at}.experts.{expert}", gate, up, down)
    if f"{at}.shared_expert.down_proj.weight" in names:
        open_to = torch.sigmoid(flat @ get(f"{at}.shared_expert_gate.weight").T)
        total = total + open_to * gated(flat, f"{at}.shared_expert")
    if f"{at}.shared_experts.down_proj.weight" in names:
        total = total + gated(flat, f"{at}.shared_experts")
    return total.view_as(x)


def _routed(config: Config, tensors: Tensors, logits: Tensor, at: str) -> tuple[Tensor, Tensor]:
    """logits [T, E] -> weights and numbers of the chosen experts [T, K]."""
    bias, (T, E) = f"{at}.e_score_correction_bias", logits.shape
    sigmoid = bias in tensors.names  # DeepSeek-V3
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1)
    choice = scores + tensors.get(bias) if sigmoid else scores
    groups = config.get("n_group") or 1
    if groups > 1 and config.get("topk_method") != "greedy":
        of_group = choice.view(T, groups, E // groups)
        best = of_group.topk(2, -1).values.sum(-1) if sigmoid else of_group.amax(-1)
        kept = torch.zeros_like(best).scatter_(1, best.topk(config["topk_group"], -1).indices, 1.0)
        choice = choice.masked_fill(kept.repeat_interleave(E // groups, -1) == 0, float("-inf"))
    chosen = choice.topk(config["num_experts_per_tok"], -1).indices
    weights = scores.gather(1, chosen)
    if config.get("norm_topk_prob", True):
        weights = weights / weights.sum(-1, keepdim=True)
    return weights * config.get("routed_scaling_factor", 1.0), chosen
