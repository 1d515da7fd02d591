"""What a sample of an op is: inputs, static parameters, and an answer that does not come from Opstage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Tolerance = tuple[float, float]  # relative, absolute


@dataclass(frozen=True)
class Sample:
    """One case of one op.

    arrays      operands from a seeded generator, floats in float64 (cast to the dtype under test); None for an absent
                bias, gamma or beta; a list of arrays where the op takes a sequence
    reference   the same in NumPy, in float64, written independently of Opstage: (*arrays, **static) -> array or tuple
    call        how to call it on `ops`, where that is not `ops.<op>(*refs, **static)`
    order       how often it is differentiable in its float operands at these inputs: 0, 1 or 2
    exact       whether it is rational, and so runs on dtype "exact" too (its inputs are then small integers or halves)
    """

    op: str
    case: str
    arrays: Callable[[np.random.Generator], tuple[Any, ...]]
    reference: Callable[..., Any] | None
    static: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None
    order: int = 2
    float64: Tolerance = (1e-10, 1e-12)
    float32: Tolerance = (1.3e-6, 1e-5)
    exact: bool = False

    @property
    def id(self) -> str:
        return f"{self.op}-{self.case}"

    def apply(self, ops: Any, *refs: Any) -> Any:
        """The op on refs of any interpreter."""
        if self.call is not None:
            return self.call(ops, *refs, **self.static)
        return getattr(ops, self.op)(*refs, **self.static)


@dataclass(frozen=True)
class BadCall:
    """A call that must fail with one and the same message, containing `message`, on every interpreter."""

    op: str
    case: str
    arrays: Callable[[], tuple[Any, ...]]
    message: str
    static: Mapping[str, Any] = field(default_factory=dict)
    call: Callable[..., Any] | None = None

    @property
    def id(self) -> str:
        return f"{self.op}-{self.case}"

    def apply(self, ops: Any, *refs: Any) -> Any:
        if self.call is not None:
            return self.call(ops, *refs, **self.static)
        return getattr(ops, self.op)(*refs, **self.static)


def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Operands drawn from a standard normal."""
    return lambda rng: tuple(rng.standard_normal(shape) for shape in shapes)


def positive(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Operands in [0.5, 2): away from the edges of log, sqrt and division."""
    return lambda rng: tuple(rng.uniform(0.5, 2.0, shape) for shape in shapes)


def distinct(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Operands whose elements differ by at least 0.1, none within 0.05 of 0: maxima without ties, away from kinks."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        total = sum(int(np.prod(shape)) for shape in shapes)
        values = (rng.permutation(total) - total // 2 + 0.5) * 0.1
        parts, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            parts.append(values[start : start + size].reshape(shape))
            start += size
        return tuple(parts)

    return make


def halves(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Operands that are small multiples of 1/2, for rational programs."""
    return lambda rng: tuple(rng.integers(-4, 5, shape) / 2 for shape in shapes)
