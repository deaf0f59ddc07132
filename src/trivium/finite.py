"""JSON that every reader takes: NaN and infinities have no place in it, and are written as null."""

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """Return plain data in which every number that is not finite is None, which JSON calls null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value


def dumps(value: Any, **options: Any) -> str:
    """Return plain data as JSON text, as `json.dumps` with these options writes it; what is not finite is null."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, **options)


def finite_or_text(value: float) -> float | str:
    """Return a number as JSON takes it: one that is not finite becomes the text "nan", "inf" or "-inf"."""
    return value if math.isfinite(value) else str(value)
