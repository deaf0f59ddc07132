"""Peak allocated memory of published runs. The figures are measured, and nothing is fitted to them."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from trivium.certify.layouts import ROTARY
from trivium.cost.case import LAYER, NONE, Case, model_numbers
from trivium.cost.published_memory import published_memory
from trivium.cost.stack import stack_named
from trivium.plan.model_shape import ModelShape

LLAMA_70B = {"layers": 12, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn": 28672}
LLAMA_405B = {"layers": 4, "hidden": 16384, "heads": 128, "kv_heads": 16, "ffn": 53248}
# Megatron Core on eight B200, torch's max_memory_allocated in GiB: SimuMax's validation table (Apache-2.0).
MEASURED = [
    (LLAMA_70B, {"tensor": 8, "context": 1, "sequence": 4096}, 28.29),
    (LLAMA_70B, {"tensor": 2, "context": 4, "sequence": 32768}, 68.43),
    (LLAMA_70B, {"tensor": 1, "context": 8, "sequence": 32768}, 104.51),
    (LLAMA_405B, {"tensor": 1, "context": 8, "sequence": 32768}, 139.22),
    (LLAMA_70B, {"tensor": 2, "context": 4, "sequence": 131072}, 112.67),
    (LLAMA_70B, {"tensor": 1, "context": 8, "sequence": 131072}, 147.99),
]


def case(model: dict[str, int], **over: int) -> Case:
    style = {} if over.get("tied") else ROTARY
    shape = ModelShape(
        **{"sequence": 4096, "vocabulary": 128256, **model}, **style, head="tied" if over.get("tied") else "untied"
    )
    fixed = {**model_numbers(shape), "vocabulary": 128256, "pipeline": 1, "chunks": 1, "data": 1}
    run = {"micro": 1, "micro_batches": 4, "recompute": NONE, "recompute_every": 1, "zero": 1}
    given = {**fixed, **run, **over}
    return Case(**{"tensor": 1, "context": 1, "sequence_parallel": int(given.get("tensor", 1) > 1), **given})


def predicted(run: Case, stack: str = "megatron-core-plain") -> float:
    (found,) = np.ravel(published_memory(run, stack_named(stack)))
    return float(found)


@pytest.mark.parametrize(("model", "layout", "gib"), MEASURED)
def test_the_measured_peak_is_predicted_within_one_percent(model, layout, gib) -> None:
    assert predicted(case(model, **layout)) / 2**30 == pytest.approx(gib, rel=0.01)


def _together(values: list[Any]) -> Any:
    """The numbers of several cases as an array; of their parts all, each with a share of 1 in its own case."""
    if not isinstance(values[0], tuple):
        return np.array(values)
    own = np.eye(len(values))
    return tuple((part, own[n] * share) for n, parts in enumerate(values) for part, share in parts)


def test_runs_at_once_are_each_run_alone() -> None:
    cases = [case(model, **layout) for model, layout, _ in MEASURED]
    together = Case(**{k: _together([getattr(c, k) for c in cases]) for k in vars(cases[0])})
    found = published_memory(together, stack_named("megatron-core-plain"))
    assert found.tolist() == [predicted(c) for c in cases]


def test_every_further_split_holds_less() -> None:
    alone = predicted(case(LLAMA_70B))
    for over in ({"tensor": 8}, {"data": 8}, {"context": 8}, {"pipeline": 4}, {"zero": 3, "data": 8}):
        assert predicted(case(LLAMA_70B, **over)) < alone, over


def test_states_are_sharded_over_context_ranks_too() -> None:
    """A short sequence, so that activations hardly count."""
    data, context = (predicted(case(LLAMA_70B, sequence=8, **{axis: 8})) for axis in ("data", "context"))
    assert context == pytest.approx(data, rel=1e-3)


def test_16_bits_of_gradients_make_20_bytes_per_parameter_as_fp32_gradients_make_18() -> None:
    wide = case(LLAMA_70B, sequence=8, vocabulary=8, pipeline=1)
    narrow = dataclasses.replace(wide, gradient_bytes=2)
    ratio = predicted(narrow, "megatron-2021") / predicted(wide, "megatron-2021")
    assert ratio == pytest.approx(20 / 18, rel=1e-3)


def test_a_recomputed_layer_keeps_its_input_and_no_more() -> None:
    def of_one_layer(sequence: int) -> float:
        both = (case({**LLAMA_70B, "layers": n}, sequence=sequence, recompute=LAYER, tensor=8) for n in (12, 11))
        more, fewer = map(predicted, both)
        return more - fewer

    input_bytes = (65536 - 8) * 8192 * 2 / 8
    assert of_one_layer(65536) - of_one_layer(8) == pytest.approx(input_bytes, rel=1e-6)
    assert predicted(case(LLAMA_70B, sequence=65536, recompute=LAYER)) < predicted(case(LLAMA_70B, sequence=65536))


def test_attention_that_keeps_its_scores_grows_with_the_square_of_the_sequence() -> None:
    gpt = {**LLAMA_70B, "kv_heads": 64}
    kept = {"scores_kept": 1, "tied": 1}
    growth = [predicted(case(gpt, sequence=s, **kept), "megatron-2021") for s in (8192, 16384, 32768)]
    assert growth[2] - growth[1] > 3.5 * (growth[1] - growth[0])
