"""Parameter groups as text in configurations: `*.bias|*norm*: weight_decay=0; emb.*: lr=1e-4`, or as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..config import Layer
from ..ops.errors import UsageError
from ..ops.untrusted import brief

GROUPS = "optimizer.groups"
"""The setting; a file may use tables, `[optimizer.groups."*.bias"]`."""

_FORM = "expected PATTERN: NAME=NUMBER, …; for instance '*.bias|*norm*: weight_decay=0; emb.*: lr=1e-4'"


def read_groups(text: str) -> dict[str, dict[str, float | bool]]:
    """Parse groups. Raises UsageError."""
    groups: dict[str, dict[str, float | bool]] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        pattern, colon, numbers = (piece.strip() for piece in part.partition(":"))
        if not (pattern and colon and numbers):
            raise UsageError(f"groups: {brief(part)}: {_FORM}")
        if pattern in groups:
            raise UsageError(f"groups: {brief(pattern)} is given twice; put its numbers together")
        values: dict[str, float | bool] = {}
        for entry in numbers.split(","):
            name, equals, value = (piece.strip() for piece in entry.partition("="))
            if not (name and equals) or name in values:
                raise UsageError(f"groups: {brief(part)}: {brief(entry.strip())}: {_FORM}")
            values[name] = _number(part, value)
        groups[pattern] = values
    return groups


def write_groups(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Format groups as `read_groups` parses them. Raises UsageError for values that are not groups."""
    parts = []
    for pattern, values in groups.items():
        if not isinstance(values, Mapping) or not values:
            raise UsageError(f"{GROUPS}: {brief(pattern)} must be a table of numbers, such as {{ weight_decay = 0 }}")
        if set(pattern) & set(":;"):
            raise UsageError(f"{GROUPS}: {brief(pattern)} has a colon or semicolon, which no pattern can have")
        for name, value in values.items():
            if not isinstance(value, (int, float)):
                raise UsageError(f"{GROUPS}: {brief(pattern)}: {name} must be a number but is {brief(value)}")
        parts.append(f"{pattern}: {', '.join(f'{name}={_text(value)}' for name, value in values.items())}")
    return "; ".join(parts)


def with_group_text(layer: Layer) -> Layer:
    """Return the layer with groups that are tables converted to text."""
    groups = layer.values.get(GROUPS)
    if not isinstance(groups, Mapping):
        return layer
    try:
        text = write_groups(groups)
    except UsageError as error:
        raise UsageError(f"{layer.origins[GROUPS]}: {error}") from None
    return replace(layer, values={**layer.values, GROUPS: text})


def _text(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _number(part: str, text: str) -> float | bool:
    if text in ("true", "false"):
        return text == "true"
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"groups: {brief(part)}: {brief(text)} is not a number; {_FORM}") from None
