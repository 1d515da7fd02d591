"""What a sample of an op is: inputs, static parameters, and an answer that does not come from Opstage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opstage.ops.primitive import NO_STATIC

Tolerance = tuple[float, float]  # relative, absolute


@dataclass(frozen=True, init=False)
class Call:
    """A call of an op: its operands, and static parameters as keywords of this class.

    call   how to call it on `ops`, where that is not `ops.<op>(*refs, **static)`
    """

    op: str
    case: str
    static: Mapping[str, Any]
    call: Callable[..., Any] | None

    @property
    def id(self) -> str:
        return f"{self.op}-{self.case}"

    def apply(self, ops: Any, *refs: Any) -> Any:
        """The op on refs of any interpreter."""
        if self.call is not None:
            return self.call(ops, *refs, **self.static)
        return getattr(ops, self.op)(*refs, **self.static)


@dataclass(frozen=True, init=False)
class Sample(Call):
    """One case of one op.

    arrays      operands from a seeded generator, floats in float64 (cast to the dtype under test); None for an absent
                bias, gamma or beta; a list of arrays where the op takes a sequence
    reference   the same in NumPy, in float64, written independently of Opstage: (*arrays, **static) -> array or tuple
    order       how often it is differentiable in its float operands at these inputs: 0, 1 or 2
    exact       whether it is rational, and so runs on dtype "exact" too (its inputs are then small integers or halves)
    """

    arrays: Callable[[np.random.Generator], tuple[Any, ...]]
    reference: Callable[..., Any] | None
    order: int
    float64: Tolerance
    float32: Tolerance
    exact: bool

    def __init__(
        self,
        op: str,
        case: str,
        arrays: Callable[[np.random.Generator], tuple[Any, ...]],
        reference: Callable[..., Any] | None,
        static: Mapping[str, Any] = NO_STATIC,
        *,
        call: Callable[..., Any] | None = None,
        order: int = 2,
        float64: Tolerance = (1e-10, 1e-12),
        float32: Tolerance = (1.3e-6, 1e-5),
        exact: bool = False,
        **more: Any,
    ):
        vars(self).update(op=op, case=case, arrays=arrays, reference=reference, static={**static, **more}, call=call)
        vars(self).update(order=order, float64=float64, float32=float32, exact=exact)


@dataclass(frozen=True, init=False)
class BadCall(Call):
    """A call that must fail with one and the same message, containing `message`, on every interpreter."""

    arrays: Callable[[], tuple[Any, ...]]
    message: str

    def __init__(
        self,
        op: str,
        case: str,
        arrays: Callable[[], tuple[Any, ...]],
        message: str,
        static: Mapping[str, Any] = NO_STATIC,
        *,
        call: Callable[..., Any] | None = None,
        **more: Any,
    ):
        vars(self).update(op=op, case=case, arrays=arrays, message=message, static={**static, **more}, call=call)


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


def given(*values: Any) -> Callable[..., tuple[Any, ...]]:
    """These operands: numbers and lists of them as arrays; None and lists of arrays as they are."""
    kept = [
        value is None or (isinstance(value, list) and all(type(v) is np.ndarray for v in value)) for value in values
    ]
    return lambda rng=None: tuple(value if keep else np.array(value) for value, keep in zip(values, kept))


def gives(*values: Any) -> Callable[..., Any]:
    """A reference that is these results, whatever it is called with."""
    results = tuple(np.array(value) for value in values)
    return lambda *_, **__: results if len(results) > 1 else results[0]


def zeros(*shapes: tuple[int, ...] | None) -> Callable[[], tuple[Any, ...]]:
    """Zeros of these shapes; None for an absent operand."""
    return lambda: tuple(None if shape is None else np.zeros(shape) for shape in shapes)
