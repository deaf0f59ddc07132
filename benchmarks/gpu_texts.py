"""Evaluation and generation on an accelerator beside transformers, on a model of the same shape."""

import statistics
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from gpu_bench import Bench, failure
from gpu_sides import Shape

from trivium.model.generate import Choice, Draft, continue_drafts
from trivium.model.whole import WholeModel

PROMPTS, NEW_TOKENS, ROWS, ROUNDS = 16, 64, 32, 3


Kind = Literal["scored", "generated"]


def text_row(bench: Bench, shape: Shape, kind: Kind) -> dict[str, Any]:
    """Tokens per second of scoring rows of text or of greedy generation, ours and theirs.

    Their scoring is what HFLM does with a batch: a forward, log-softmax, and the targets' share.
    """
    prompts, new, rows = (2, 4, 2) if bench.smoke else (PROMPTS, NEW_TOKENS, ROWS)
    ids = np.random.default_rng(1).integers(0, shape.vocabulary, (rows, shape.sequence)).tolist()
    starts = [row[: shape.sequence // 4] for row in ids[:prompts]]
    tokens = rows * shape.sequence if kind == "scored" else prompts * new
    found: dict[str, Any] = {}
    for name, make in (("trivium", _ours), ("transformers", _theirs)):
        try:
            score, generate = make(shape, bench.device, new)
            act = partial(score, ids) if kind == "scored" else partial(generate, starts)
            seconds = [bench.seconds(act) for _ in range(ROUNDS + 1)][1:]
        except Exception as error:
            found[name] = failure(error)
            continue
        found[name] = {"status": "measured", "tokens_per_second": tokens / statistics.median(seconds)}
    return {"kind": kind, "texts": found}


def _ours(shape: Shape, device: torch.device, new: int) -> Any:
    model = WholeModel(shape.plan().model, precision="bf16", device=device)
    with torch.no_grad():
        for parameter in model.stage.parameters():
            parameter.normal_(0, 0.02)

    @torch.no_grad()
    def score(rows: list[list[int]]) -> None:
        tokens = torch.tensor(rows, device=device).T
        hidden = model.hidden(tokens)
        assert hidden is not None, "one rank holds every stage"
        flat = hidden.flatten(0, 1)
        at = torch.arange(len(flat), device=device)
        model.likelihoods(flat, rows=at, targets=tokens.roll(-1, 0).flatten())

    def generate(prompts: list[list[int]]) -> None:
        choice = Choice(temperature=0.0, top_k=0, top_p=1.0, seed=0)
        drafts = [Draft(p, choice, lambda drawn: False, new) for p in prompts]
        continue_drafts(model, drafts)

    return score, generate


def _theirs(shape: Shape, device: torch.device, new: int) -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=shape.vocabulary,
        n_positions=shape.sequence,
        n_embd=shape.hidden,
        n_layer=shape.layers,
        n_head=shape.heads,
        tie_word_embeddings=False,
        attn_implementation="sdpa",
        bos_token_id=0,
        eos_token_id=None,
    )
    with device:
        model = GPT2LMHeadModel(config).to(torch.bfloat16).eval()

    @torch.no_grad()
    def score(rows: list[list[int]]) -> None:
        for start in range(0, len(rows), 8):
            x = torch.tensor(rows[start : start + 8], device=device)
            logits = model(x, use_cache=False).logits[:, :-1].float().log_softmax(-1)
            logits.gather(-1, x[:, 1:, None]).sum().item()

    @torch.no_grad()
    def generate(prompts: list[list[int]]) -> None:
        x = torch.tensor(prompts, device=device)
        model.generate(
            x,
            attention_mask=torch.ones_like(x),
            do_sample=False,
            min_new_tokens=new,
            max_new_tokens=new,
            pad_token_id=0,
        )

    return score, generate
