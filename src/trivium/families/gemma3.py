"""Gemma 3 (arXiv 2503.19786), text alone: layers with a window and those without have rotary positions of their own."""

from types import MappingProxyType
from typing import Any

from trivium.errors import ConfigError
from trivium.families.common.family import Config, Tree
from trivium.families.common.gemma import MUST, gemma
from trivium.families.common.rope import rope_config, rope_of
from trivium.families.common.windows import ALL, WINDOW
from trivium.plan.model_shape import ModelShape
from trivium.units import listed

GLOBAL_BASE, LOCAL_BASE = 1e6, 1e4  # defaults of transformers


def rope(config: Config, where: str, windows: Tree) -> Tree:
    """Return the settings of windows, with the rotary positions of both kinds of layers."""
    given: Any = config.get("rope_parameters") or {}
    base = config.get("rope_theta") or GLOBAL_BASE
    of_all = rope_of({**config, "rope_theta": base, "rope_parameters": given.get(ALL)}, where)
    if "window" not in windows:
        return of_all
    local = {"rope_theta": config.get("rope_local_base_freq") or LOCAL_BASE, "rope_scaling": None}
    of_window = rope_of({**config, **local, "rope_parameters": given.get(WINDOW)}, where)
    differ = {name: value for name, value in of_all.items() if value != of_window[name]}
    found = {**windows, **of_window}
    for name in ("first", "pattern"):
        runs = windows.get(name, ())
        found[name] = tuple({**run, **differ} if run.get("window", 0) is None else run for run in runs)
    return found


def both_ropes(model: ModelShape) -> Tree:
    """Return the fields of config.json, as transformers 5 reads them and as those before did.

    Raises ConfigError where layers of one kind differ.
    """
    forms = [model.form_of(n) for n in range(model.layers)]
    for kind in (True, False):
        ropes = {(form.rope_base, form.rope_scaling) for form in forms if (form.window is None) is kind}
        if len(ropes) > 1:
            bases, which = listed(sorted({base for base, _ in ropes})), "without" if kind else "with"
            raise ConfigError(
                f"plan.model.pattern gives layers {which} a window {len(ropes)} kinds of rotary positions (rope_base "
                f"{bases}), and Gemma3ForCausalLM has one; train with one rope_base and rope_scaling in all of them "
                f"for a model that is to be exported"
            )
    of_all = next((form for form in forms if form.window is None), model)
    of_window = next((form for form in forms if form.window is not None), model)
    all_fields, window_fields = (
        rope_config(model.model_copy(update={"rope_base": form.rope_base, "rope_scaling": form.rope_scaling}))
        for form in (of_all, of_window)
    )
    return {
        **all_fields,
        "rope_local_base_freq": of_window.rope_base,
        "rope_parameters": {ALL: all_fields["rope_parameters"], WINDOW: window_fields["rope_parameters"]},
    }


GEMMA = gemma(
    "Gemma3ForCausalLM",
    "gemma3_text",
    qk_norm="each_head",
    every=lambda config: config.get("sliding_window_pattern") or 6,
    rope=rope,
    rope_config=both_ropes,
    unsaid=MappingProxyType(
        {
            "num_key_value_heads": 4,
            "head_dim": 256,
            "rms_norm_eps": 1e-6,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
        }
    ),
    free=("rope_base", "rope_scaling"),
)
# transformers read the cap of attention's scores, and do not use it
FAMILY = GEMMA._replace(must=MappingProxyType({**MUST, "attn_logit_softcapping": (None,)}))
