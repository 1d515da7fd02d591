"""Errors specific to symbolic dims."""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import LocatedError, OpstageError, ShapeError, UsageError


class SymbolicDimError(OpstageError, TypeError):
    """A symbolic dim was used where a number is required, such as `range(T)` or `float(T)`."""

    def __init__(self, text: str, use: str):
        super().__init__(
            f"{text} is symbolic: it stands for every allowed size, so it has no single value for {use}. "
            "Keep it in shape arithmetic (+ - * // %), or give the input a fixed size there"
        )


class TooComplexError(ShapeError):
    """An expression of sizes exceeds a complexity limit; the limits are in `polynomial`."""

    def __init__(self, what: str):
        super().__init__(
            f"an expression of sizes grows too large: {what}; write it with fewer names, powers or nested parts"
        )


class MissingSizeError(UsageError, KeyError):
    """An expression was evaluated without a value for one of its names."""

    def __init__(self, name: str, given: Iterable[str]):
        super().__init__(f"no value was given for the dim {name}; values were given for: {', '.join(given) or 'none'}")

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would quote it


class UndecidedDimError(LocatedError, TypeError):
    """A relation of dims was used as a truth value, but holds for some allowed values and possibly not for others."""


def unhashable(text: str) -> UndecidedDimError:
    """Return the error for a user's set or dict that looks up a size that is not decided."""
    return UndecidedDimError(
        f"{text} is symbolic: it stands for every allowed size, so a set or dict, which looks up one number, would not "
        "find it. Compare it, as in `size in (224, 256)`, which asks ==; give the input a fixed size there; or use "
        "str(size) as the key"
    )


class UnknownDimError(UndecidedDimError):
    """The value of `?` was requested: a consequence of an error that was already reported."""
