"""Write standard JSON, in which NaN and infinities become null."""

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """Return plain data with None in place of numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(each) for each in value]
    return value


def dumps(value: Any, **options: Any) -> str:
    """Serialize plain data with `json.dumps` and these options, with null in place of numbers that are not finite."""
    try:
        return json.dumps(value, allow_nan=False, **options)
    except ValueError:
        return json.dumps(finite(value), allow_nan=False, **options)


def finite_or_text(value: float) -> float | str:
    """Return a finite number unchanged, and others as "nan", "inf" or "-inf"."""
    return value if math.isfinite(value) else str(value)
