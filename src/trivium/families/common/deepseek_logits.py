"""Logits of a folder of DeepSeek-V2 or -V3, from their definitions.

Legend: B sequences, S positions, N heads, P plain and R rotated columns of a head of queries and keys, V columns of one
of values.
"""

import math

import torch
import torch.nn.functional as F

from trivium.families.common.attention import rotation
from trivium.families.common.experts_logits import mixture
from trivium.families.common.family import Config, Tensors

Tensor = torch.Tensor
LATENT_EPSILON = 1e-6  # of the norms of latents, whatever rms_norm_eps is


def logits(config: Config, tensors: Tensors, tokens: Tensor) -> Tensor:
    """tokens [B, S] -> logits [B, S, V]."""
    (get, names), (B, S), N = tensors, tokens.shape, config["num_attention_heads"]
    P, R, V = config["qk_nope_head_dim"], config["qk_rope_head_dim"], config["v_head_dim"]
    cos, sin, scale = _rotation(config, S)
    hidden = torch.ones(S, S, dtype=torch.bool).triu(1)

    def norm(x: Tensor, name: str, epsilon: float = config["rms_norm_eps"]) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * get(f"{name}.weight")

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ get(f"{name}.weight").T

    def turned(x: Tensor) -> Tensor:  # [B, S, heads, R]
        a, b = (x[..., ::2], x[..., 1::2]) if config.get("rope_interleave", True) else x.chunk(2, -1)
        c, s = cos.to(x), sin.to(x)
        return torch.cat([a * c - b * s, b * c + a * s], -1)

    def attention(x: Tensor, at: str) -> Tensor:
        if f"{at}.q_proj.weight" in names:
            q = linear(x, f"{at}.q_proj")
        else:
            q = linear(norm(linear(x, f"{at}.q_a_proj"), f"{at}.q_a_layernorm", LATENT_EPSILON), f"{at}.q_b_proj")
        q_plain, q_rotated = torch.split(q.view(B, S, N, P + R), [P, R], -1)
        latent, k_rotated = torch.split(linear(x, f"{at}.kv_a_proj_with_mqa"), [config["kv_lora_rank"], R], -1)
        kv = linear(norm(latent, f"{at}.kv_a_layernorm", LATENT_EPSILON), f"{at}.kv_b_proj")
        k_plain, v = torch.split(kv.view(B, S, N, P + V), [P, V], -1)
        scores = torch.einsum("bsnp,btnp->bnst", q_plain, k_plain)
        scores = scores + torch.einsum("bsnr,btor->bnst", turned(q_rotated), turned(k_rotated.unsqueeze(2)))
        shares = (scores * scale).masked_fill(hidden, -math.inf).softmax(-1)
        return linear(torch.einsum("bnst,btnv->bsnv", shares, v).flatten(2), f"{at}.o_proj")

    x = get("model.embed_tokens.weight")[tokens]
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        x = x + attention(norm(x, f"{at}.input_layernorm"), f"{at}.self_attn")
        y = norm(x, f"{at}.post_attention_layernorm")
        if layer < config["first_k_dense_replace"]:
            y = F.silu(linear(y, f"{at}.mlp.gate_proj")) * linear(y, f"{at}.mlp.up_proj")
            x = x + linear(y, f"{at}.mlp.down_proj")
        else:
            x = x + mixture(config, tensors, y, at)
    table = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    return norm(x, "model.norm") @ get(table).T


def _rotation(config: Config, S: int) -> tuple[Tensor, Tensor, float]:
    """Return cosines and sines [S, 1, R/2], and the factor of scores."""
    rope, R = config["rope_parameters"], config["qk_rope_head_dim"]
    scale, factor = (config["qk_nope_head_dim"] + R) ** -0.5, rope.get("factor", 1.0)

    def grown(mscale: float) -> float:
        return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0

    if rope.get("mscale_all_dim"):
        scale *= grown(rope["mscale_all_dim"]) ** 2
        if rope.get("mscale") and "attention_factor" not in rope:
            rope = {**rope, "attention_factor": grown(rope["mscale"]) / grown(rope["mscale_all_dim"])}
    cos, sin = rotation(rope, S, R)
    return cos.unsqueeze(1), sin.unsqueeze(1), scale
