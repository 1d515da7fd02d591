"""A row of the table: one op written twice, and the arguments that it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np


class Argument(NamedTuple):
    """An array drawn from a seed: normal floats, or whole numbers below a limit."""

    shape: tuple[int, ...]
    below: int | None = None
    diagonal: float = 0.0  # added to that of square matrices, which makes them invertible

    @property
    def is_float(self) -> bool:
        return self.below is None


class Row(NamedTuple):
    """An op: ours(ops, *arguments) and theirs(torch, functional, *arguments), of which the gradient of the sum is
    taken with respect to all floats."""

    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    arguments: Sequence[Argument]
    is_random: bool = False

    def draw(self) -> list[Any]:
        """The arguments, the same ones in every process."""
        rng = np.random.default_rng(0)
        return [_drawn(rng, each) for each in self.arguments]


def normal(*shape: int, diagonal: float = 0.0) -> Argument:
    return Argument(shape, None, diagonal)


def whole(below: int, *shape: int) -> Argument:
    return Argument(shape, below)


def row(ours: Callable[..., Any], theirs: Callable[..., Any], *arguments: Argument, is_random: bool = False) -> Row:
    return Row(ours, theirs, arguments, is_random)


def _drawn(rng: np.random.Generator, argument: Argument) -> Any:
    if argument.below is not None:
        return rng.integers(0, argument.below, argument.shape)
    drawn = rng.standard_normal(argument.shape)
    if argument.diagonal:
        drawn += argument.diagonal * np.eye(argument.shape[-1])
    return drawn.astype(np.float32)
