"""The layers with sliding-window attention in a config.json, read and written."""

from collections.abc import Mapping
from typing import Any, Literal

from trivium.errors import DataError
from trivium.plan.model_shape import ModelShape

# none: never. sized: every layer, where `sliding_window` has a size. typed: those that `layer_types` names, or every
# one. mixed: those that it names, or all but every fourth. used: with `use_sliding_window` besides, those that
# `layer_types` names, or from `max_window_layers` on; used_in_turn: or every second before `max_window_layers`;
# used_in_all: every layer.
Windows = Literal["none", "sized", "typed", "mixed", "used", "used_in_turn", "used_in_all"]
_USED, _ALIKE = ("used", "used_in_turn", "used_in_all"), ("sized", "used_in_all")
WINDOW, ALL = "sliding_attention", "full_attention"
# Defaults of transformers: max_window_layers, and the period of layers with full attention in mixed models.
_DEFAULT_MAX_WINDOW_LAYERS, _FULL_ATTENTION_PERIOD = 28, 4


def windows_of(config: Mapping[str, Any], kind: Windows, where: str) -> dict[str, Any]:
    """Return fields of a model's shape. Raises DataError for settings that this engine would compute differently."""
    if kind == "none":
        return {}
    size, layers = config.get("sliding_window"), config["num_hidden_layers"]
    if kind in _USED and not config.get("use_sliding_window"):
        size = None
    if size == 0:
        raise DataError(f"{where}: sliding_window is 0; it must be greater than or equal to 1, or null for no window")
    first, every = (0, None) if kind in _ALIKE else _layers(config, kind, size, where)
    if size is None or first >= layers:
        return {}
    found: dict[str, Any] = {"window": size}
    if first:
        found["first"] = ({"times": first, "window": None},)
    if every is not None:
        found["pattern"] = ({"times": every - 1}, {"window": None})
    return found


def windows_config(model: ModelShape, kind: Windows) -> dict[str, Any]:
    """The fields of config.json."""
    if kind == "none":
        return {}
    windows = [model.form_of(n).window for n in range(model.layers)]
    size = next((window for window in windows if window is not None), None)
    if kind == "sized":
        return {"sliding_window": size}
    if size is None:
        return {"use_sliding_window": False} if kind in _USED else {"sliding_window": None}
    used: dict[str, Any] = {"use_sliding_window": True} if kind in _USED else {}
    if kind == "used_in_all":
        return {**used, "sliding_window": size}
    if kind == "used":
        used["max_window_layers"] = next(n for n, window in enumerate(windows) if window is not None)
    types = [ALL if window is None else WINDOW for window in windows]
    return {**used, "sliding_window": size, "layer_types": types}


def can_say(model: ModelShape, kind: Windows) -> bool:
    """Whether a config.json of this kind has words for the windows of a model."""
    windows = {model.form_of(n).window for n in range(model.layers)}
    if kind == "none":
        return windows <= {None}
    return len(windows) == 1 if kind in _ALIKE else len(windows - {None}) <= 1


def _layers(config: Mapping[str, Any], kind: Windows, size: int | None, where: str) -> tuple[int, int | None]:
    """The first layer with a window, and of those from there on, how many-th each sees all."""
    given, layers = config.get("layer_types"), config["num_hidden_layers"]
    if given is None and kind == "mixed":
        given = [WINDOW if (n + 1) % _FULL_ATTENTION_PERIOD else ALL for n in range(layers)]
    if given is None and kind == "used_in_turn":
        before = config.get("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS) if size is not None else 0
        given = [WINDOW if n < before and n % 2 == 0 else ALL for n in range(layers)]
    if given is None:
        first = config.get("max_window_layers", _DEFAULT_MAX_WINDOW_LAYERS) if kind == "used" else 0
        if first is None:
            raise DataError(f"{where}: max_window_layers is None, and must be a whole number")
        return first, None
    if not isinstance(given, list) or len(given) != layers or any(t not in (WINDOW, ALL) for t in given):
        raise DataError(
            f"{where}: layer_types is {given!r}, and must name {WINDOW} or {ALL} for each of {layers} layers"
        )
    if size is None and WINDOW in given:
        raise DataError(
            f"{where}: layer_types has {WINDOW}, and no window is in use: sliding_window is "
            f"{config.get('sliding_window')!r} and use_sliding_window {config.get('use_sliding_window')!r}; set both"
        )
    return _pattern(given, where)


def _pattern(types: list[str], where: str) -> tuple[int, int | None]:
    slides = [t == WINDOW for t in types]
    first = slides.index(True) if True in slides else len(slides)
    rest = slides[first:]
    every = rest.index(False) + 1 if False in rest else None
    if rest != [every is None or (n + 1) % every != 0 for n in range(len(rest))]:
        raise DataError(
            f"{where}: layer_types has {WINDOW} in layers {[n for n, s in enumerate(slides) if s]}, and this engine "
            f"computes it from some layer on, in all or in all but every k-th"
        )
    return first, every
