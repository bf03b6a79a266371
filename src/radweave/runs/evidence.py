"""What a model noted while it wrote, as values that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

DIGITS = 4
"""Significant digits of a number: a map of attention needs no more, and JSON stays a third of its length."""


def json_value(value: Any) -> Any:
    """Arrays and tensors become nested lists, floats are rounded to ``DIGITS`` digits, NaN and infinity become None.

    Raises:
        TypeError: for a value that is neither a number, a text, None, an array nor a container of these.
    """
    if isinstance(value, (str, bool, int)) or value is None:
        return value
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if hasattr(value, "detach"):  # a tensor, which may be on a device and in half precision
        value = value.detach().cpu()
    if hasattr(value, "tolist"):
        return json_value(value.tolist())
    raise TypeError(f"evidence of type {type(value).__name__} cannot be shown")
