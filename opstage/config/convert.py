"""Convert values, as spelled in files and on command lines, to the types of annotations."""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from ..ops.errors import nearest
from ..ops.untrusted import brief

NONE = "none"
"""The spelling of None in files and flags, since TOML has none."""

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Mismatch(Exception):
    """A value of the wrong type; the message has the value and the expected type."""


def convert(value: Any, annotation: Any) -> Any:
    """Return `value` converted to type `annotation`. Raises `Mismatch`.

    Annotations are bool, int, float, str, Path, Literal, tuple[T, ...], tuple[T, U], and unions of these with None. A
    float may be written as an integer. A tuple is a sequence. Nothing else is reinterpreted: "3" is not an integer, see
    `read_text`.
    """
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return _convert_union(value, get_args(annotation))
    if origin is Literal:
        choices = get_args(annotation)
        if isinstance(value, str) and value in choices:
            return value
        close = nearest(value, choices) if isinstance(value, str) else ""
        raise Mismatch(f"{brief(value)} is not one of {', '.join(map(repr, choices))}{close}")
    if origin is tuple:
        return _convert_tuple(value, get_args(annotation))
    if annotation is bool and isinstance(value, bool):
        return value
    if annotation is int and isinstance(value, int) and not isinstance(value, bool):
        if not -(2**63) <= value <= 2**64:
            raise Mismatch(f"{brief(value)} is too large; integers have at most 64 bits")
        return value
    if annotation is float and isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise Mismatch(f"{brief(value)} is too large for a number") from None
    if annotation is str and isinstance(value, str):
        return value
    if annotation is Path and isinstance(value, (str, Path)) and str(value):
        return Path(value)
    raise Mismatch(f"{brief(value)} is not {describe(annotation)}")


def read_text(text: str, annotation: Any) -> Any:
    """Parse a flag's text as type `annotation`: `6`, `1e-3`, `true`, `64,128`, `none`. Raises `Mismatch`."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        members = get_args(annotation)
        if type(None) in members and text.strip().lower() == NONE:
            return None
        return _first_that_fits(text, [m for m in members if m is not type(None)], read_text)
    if origin is tuple:
        members = get_args(annotation)
        inside = text.strip().removeprefix("[").removesuffix("]").removeprefix("(").removesuffix(")")
        parts = [part for part in inside.split(",") if part.strip()]
        if len(members) == 2 and members[1] is Ellipsis:
            return tuple(read_text(part, members[0]) for part in parts)
        if len(parts) != len(members):
            raise Mismatch(f"{brief(text)} is not {describe(annotation)}")
        return tuple(read_text(part, member) for part, member in zip(parts, members))
    value: Any = text
    if annotation is bool:
        value = _BOOLEANS.get(text.strip().lower(), text)
    elif annotation in (int, float):
        try:
            value = annotation(text.strip())
        except ValueError:  # also for thousands of digits
            pass
    return convert(value, annotation)


def describe(annotation: Any) -> str:
    """Describe `annotation` in words: "an integer", "a list of numbers"."""
    simple = {bool: "true or false", int: "an integer", float: "a number", str: "a string", Path: "a path"}
    if annotation in simple:
        return simple[annotation]
    if annotation is type(None):
        return "nothing"
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member) for member in members if member is not type(None))
    if origin is Literal:
        return f"one of {', '.join(map(repr, members))}"
    if origin is tuple:
        return _describe_tuple(members)
    return f"a {getattr(annotation, '__name__', annotation)}"


def is_boolean(annotation: Any) -> bool:
    """Whether a flag of this type may have no value, which means true."""
    return annotation is bool or bool in get_args(annotation)


def is_finite(value: Any) -> bool:
    """Whether no number in `value` is nan or infinite."""
    if isinstance(value, tuple):
        return all(is_finite(item) for item in value)
    return not isinstance(value, float) or math.isfinite(value)


def _convert_union(value: Any, members: Sequence[Any]) -> Any:
    if type(None) in members and (value is None or value == NONE):
        return None
    return _first_that_fits(value, [member for member in members if member is not type(None)], convert)


def _first_that_fits(value: Any, members: Sequence[Any], read: Any) -> Any:
    for member in members:
        try:
            return read(value, member)
        except Mismatch as error:
            if len(members) == 1:
                raise error
    raise Mismatch(f"{brief(value)} is not {' or '.join(describe(member) for member in members)}")


def _describe_tuple(members: Sequence[Any]) -> str:
    if len(members) == 2 and members[1] is Ellipsis:
        return f"a list, each {describe(members[0])}"
    return f"a list of {len(members)}: {', '.join(describe(member) for member in members)}"


def _convert_tuple(value: Any, members: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, (list, tuple)):
        raise Mismatch(f"{brief(value)} is not {_describe_tuple(members)}")
    if len(members) == 2 and members[1] is Ellipsis:
        return tuple(convert(item, members[0]) for item in value)
    if len(value) != len(members):
        raise Mismatch(f"{brief(value)} is not {_describe_tuple(members)}")
    return tuple(convert(item, member) for item, member in zip(value, members))
