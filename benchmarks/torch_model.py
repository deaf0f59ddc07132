"""The same GPT as a user of plain PyTorch writes it, batch first, with the same initial values.

Layers live in a ModuleDict and the ends may be None, so that a pipeline stage keeps its part (torchtitan's way).
Legend: B sequences, S positions, H hidden, N heads here, D head width, V vocabulary.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from setting import LR, RULE, SEED, Setting
from torch import Tensor, nn

from trivium.model.initialise import initial_values
from trivium.plan.model_shape import ModelShape
from trivium.plan.parameters import Box, parameters


class Attention(nn.Module):
    """Queries, keys and values of a head side by side, as Megatron lays them out."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.width = hidden // heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """[B, S, H] -> [B, S, H]; seen [B, 1, S, S], true where a query sees a key: all before it if None."""
        qkv = self.qkv(x)
        B, S, _ = qkv.shape
        q, k, v = qkv.view(B, S, -1, 3, self.width).permute(3, 0, 2, 1, 4).unbind(0)  # B N S D
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        return self.out(y.transpose(1, 2).reshape(B, S, -1))


class Mlp(nn.Module):
    """Up, GELU (tanh), down."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[B, S, H] -> [B, S, H]."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))


class Block(nn.Module):
    """Pre-LayerNorm transformer block."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = Mlp(hidden)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """[B, S, H] -> [B, S, H]; seen as `Attention` has it."""
        x = x + self.attention(self.attention_norm(x), seen)
        return x + self.mlp(self.mlp_norm(x))


class Gpt(nn.Module):
    """The model, or the part of it with these layers and ends."""

    def __init__(
        self, setting: Setting, layers: Iterable[int] | None = None, *, first: bool = True, last: bool = True
    ) -> None:
        super().__init__()
        H, V = setting.hidden, setting.vocabulary
        self.setting = setting
        self.tokens = nn.Embedding(V, H) if first else None
        self.positions = nn.Embedding(setting.sequence, H) if first else None
        held = range(setting.layers) if layers is None else layers
        self.layers = nn.ModuleDict({str(n): Block(H, setting.heads) for n in held})
        self.norm = nn.LayerNorm(H) if last else None
        self.head = nn.Linear(H, V, bias=False) if last else None

    def forward(self, x: Tensor, numbers: Tensor | None = None, seen: Tensor | None = None) -> Tensor:
        """[B, S] tokens or [B, S, H] -> [B, S, H] or logits [B, S, V]. numbers: the tokens' positions, 0, 1, … if
        None."""
        if self.tokens is not None and self.positions is not None:
            every = torch.arange(x.shape[1], device=x.device)
            x = self.tokens(x) + self.positions(every if numbers is None else numbers)
        for block in self.layers.values():
            x = block(x, seen)
        if self.norm is not None and self.head is not None:
            x = self.head(self.norm(x))
        return x

    @torch.no_grad()
    def fill(self, model: ModelShape | None = None, seed: int = SEED) -> "Gpt":
        """Trivium's initial values, by name. model: another shape of these sizes than the setting's."""
        model = model or self.setting.plan().model
        mine = dict(self.named_parameters())
        for row in parameters(model):
            name = _name(row.name)
            if name in mine:
                whole = Box((0,) * len(row.shape), row.shape)
                mine[name].copy_(initial_values(row, model, seed, whole))
        return self


def _name(ours: str) -> str:
    name = ours.removeprefix("embedding.") if ours.startswith("embedding.") else ours
    name = name.replace("head.norm", "norm")
    return name.replace("attention.norm", "attention_norm").replace("mlp.norm", "mlp_norm")


def mean_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy over the tokens, in fp32."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def narrow(setting: Setting) -> AbstractContextManager[object]:
    """Autocast to the setting's dtype; weights and moments stay fp32."""
    if setting.weights == "fp32":
        return nullcontext()
    return torch.autocast("cpu", dtype=torch.bfloat16)


def adamw(modules: Iterable[nn.Module]) -> torch.optim.AdamW:
    """The recipe: no decay on biases and norms; PyTorch's fused kernel, its fastest on a processor."""
    every = [p for module in modules for p in module.parameters()]
    groups = [
        {"params": [p for p in every if p.dim() >= 2], "weight_decay": RULE.weight_decay},
        {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [g for g in groups if g["params"]], lr=LR, betas=(RULE.beta1, RULE.beta2), eps=RULE.epsilon, fused=True
    )


def tensors(setting: Setting, step: int, *, index: int = 0, of: int = 1) -> tuple[Tensor, Tensor]:
    """Tokens and targets of one of `of` replicas, each [B, S]."""
    tokens, targets = setting.rows(step)
    each = setting.sequences // of
    rows = slice(index * each, (index + 1) * each)
    return torch.from_numpy(tokens[rows]), torch.from_numpy(targets[rows])
