"""The settings of a feed-forward half that is made of experts (mixture of experts)."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trivium.config import Config, NotNegative, Positive, Tree
from trivium.plan.rope_scaling import Above0
from trivium.plan.sizes import MAX_EXPERTS, Wide

Rate = Annotated[float, Field(ge=0)]
Count = Annotated[Positive, Field(le=MAX_EXPERTS)]


class Experts(Config):
    """Experts are gated feed-forward networks, of which each token visits `chosen`.

    y = sum of w_e FFN_e(x) over the chosen experts e, plus the shared expert. Scores are computed in fp32 from x and
    the router's weight. With `groups`, only experts of the best groups are chosen (DeepSeek-V2, arXiv 2405.04434).
    """

    count: Count  # routed experts
    chosen: Count  # experts that each token visits
    columns: Wide | None = None  # columns of each expert; None: as plan.model.ffn
    scores: Literal["softmax", "sigmoid"] = "softmax"  # function of the router's logits
    normalized: bool = True  # whether the weights of a token's experts are divided by their sum
    scale: Above0 = 1.0  # factor of these weights
    groups: Count = 1  # groups of consecutive experts
    chosen_groups: Count = 1  # groups from which a token's experts are chosen
    # score of a group: its largest score (DeepSeek-V2), or the sum of its two largest (DeepSeek-V3)
    group_score: Literal["largest", "two_largest"] = "largest"
    shared: NotNegative = 0  # columns of the shared expert, which all tokens visit; 0: there is none
    shared_gate: bool = False  # whether the shared expert is multiplied by a sigmoid of a product with x (Qwen2-MoE)
    # tokens that an expert takes, as a multiple of their mean; others skip it, so that the result depends on the
    # layout; None: no token is dropped
    capacity: Above0 | None = None
    # tokens of the busiest expert rank over their mean, from which memory and seconds of plans are estimated: 1 to 1.5
    # in a trained model, 3 and more in its first steps; training does not read it
    imbalance: Annotated[float, Field(ge=1)] = 1.25
    balance_loss: Rate = 0.0  # factor of the loss that rewards an even load (arXiv 2101.03961); 0: there is none
    # whose balance_loss: megatron adds layers, and an even load gives the factor itself; transformers pools layers, and
    # an even load gives `chosen` times the factor
    balance_convention: Literal["megatron", "transformers"] = "megatron"
    # tokens over which loads and scores are averaged for balance_loss
    balance_scope: Literal["micro_batch", "sequence", "global_batch"] = "micro_batch"
    router_z_loss: Rate = 0.0  # factor of the squared log-sum-exp of the router's logits (arXiv 2202.08906)
    # change of each expert's bias after a step, towards an even load; the bias is added to scores only for the choice
    # (arXiv 2408.15664); None: there is no bias
    bias_rate: Rate | None = None

    def of_weights(self) -> Tree:
        """Return the settings on which weights depend, as plain data: those of losses and of dropping may change."""
        free = {"capacity", "imbalance", "balance_loss", "balance_convention", "balance_scope", "router_z_loss"}
        return {**self.model_dump(exclude=free | {"bias_rate"}), "bias": self.bias_rate is not None}

    def problems(self) -> Iterator[str]:
        """Yield the contradictions among the settings."""
        at = "plan.model.experts"
        if self.chosen > self.count:
            yield f"{at}.chosen ({self.chosen}) must be at most {at}.count ({self.count}); lower it"
        elif self.count % self.groups:
            yield f"{at}.count ({self.count}) must be a multiple of {at}.groups ({self.groups})"
        elif self.chosen_groups > self.groups:
            yield f"{at}.chosen_groups ({self.chosen_groups}) must be at most {at}.groups ({self.groups}); lower it"
        elif self.chosen > (here := self.count // self.groups * self.chosen_groups):
            yield (
                f"{at}.chosen is {self.chosen}, and {at}.chosen_groups ({self.chosen_groups}) of {at}.groups "
                f"({self.groups}) have {here} experts; raise chosen_groups"
            )
        elif self.group_score == "two_largest" and self.groups > 1 and self.count // self.groups < 2:
            yield f"{at}.group_score is 'two_largest', and each of {at}.groups ({self.groups}) has one expert"
        if self.shared_gate and not self.shared:
            yield f"{at}.shared_gate is true, and {at}.shared is 0; give its columns, or leave the gate out"
