"""What a twin is: a method of Ops, the PyTorch call that means the same, and the cases on which they are compared."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opstage.ops import derived

Arrays = Callable[[np.random.Generator], tuple[Any, ...]]


@dataclass(frozen=True)
class Case:
    """One comparison.

    arrays    operands from a seeded generator, floats in float64 (cast to the dtype under test); None for an absent
              operand; a list of arrays where the op takes a sequence
    static    the op's keywords
    terms     how many products or terms the longest sum adds up, forward or backward; tolerances grow with its root
    edge      whether operands are nan, infinite, huge or at a kink: compared as any other, and left out of the
              published table, where an ulp of such a result says nothing
    """

    name: str
    arrays: Arrays
    static: Mapping[str, Any] = field(default_factory=dict)
    terms: int = 1
    edge: bool = False


@dataclass(frozen=True)
class Twin:
    """A method of Ops (or a function of `opstage.ops.derived`) beside its twin.

    torch     (*tensors, **static) -> tensor or tuple of tensors
    call      (ops, *refs, **static), where it is not `ops.<op>(*refs, **static)`
    gradient  why gradients are not compared, or "" when they are
    """

    op: str
    torch: Callable[..., Any]
    cases: tuple[Case, ...]
    call: Callable[..., Any] | None = None
    gradient: str = ""

    def apply(self, ops: Any, *refs: Any, **static: Any) -> Any:
        if self.call is not None:
            return self.call(ops, *refs, **static)
        return getattr(ops, self.op)(*refs, **static)


# Operands -------------------------------------------------------------------------------------------------------------


def normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Arrays:
    """Standard normal numbers, times `scale`."""
    return lambda rng: tuple(scale * rng.standard_normal(shape) for shape in shapes)


def uniform(lo: float, hi: float, *shapes: tuple[int, ...]) -> Arrays:
    """Numbers spread evenly over [lo, hi)."""
    return lambda rng: tuple(rng.uniform(lo, hi, shape) for shape in shapes)


def fixed(*values: Any) -> Arrays:
    """These very numbers."""
    return lambda rng: tuple(None if value is None else np.array(value) for value in values)


def tied(*shapes: tuple[int, ...]) -> Arrays:
    """Small whole numbers, many of them equal."""
    return lambda rng: tuple(rng.integers(-2, 3, shape).astype(np.float64) for shape in shapes)


def integers(lo: int, hi: int, *shapes: tuple[int, ...]) -> Arrays:
    """Whole numbers in [lo, hi), of dtype int64."""
    return lambda rng: tuple(rng.integers(lo, hi, shape) for shape in shapes)


def masks(*shapes: tuple[int, ...]) -> Arrays:
    """Booleans."""
    return lambda rng: tuple(rng.random(shape) < 0.5 for shape in shapes)


def both(*parts: Arrays) -> Arrays:
    """The operands of one generator after those of another."""
    return lambda rng: tuple(array for part in parts for array in part(rng))


INF, NAN = math.inf, math.nan
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1e-30, -1e-30, 1e30, -1e30, INF, -INF, NAN)
"""Where functions of one element have their kinks and poles."""
SHAPES = ((), (5,), (3, 4), (2, 1, 3), (0, 3), (2, 3, 2, 2), (67, 129))
"""Scalars, vectors, matrices, a size of 1, nothing at all, four axes, and more than a vector instruction takes."""


CUBE = normal((2, 3, 4))


def derived_twin(
    name: str, torch_call: Callable[..., Any], *cases: Mapping[str, Any], arrays: Arrays = CUBE, terms: int = 4
) -> Twin:
    """A function of derived beside PyTorch's, both called with the statics of each case."""
    return Twin(
        f"derived.{name}",
        torch_call,
        tuple(Case(f"{static}", arrays, static, terms) for static in cases or ({},)),
        call=lambda ops, *xs, **static: getattr(derived, name)(ops, *xs, **static),
    )
