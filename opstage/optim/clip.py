"""Gradient clipping, as programs: `clip(ops, gradients)` returns the clipped gradients.

Nothing is an error here: a nan in a gradient propagates. A norm that is infinite, or that overflows, makes all
gradients nan. In PyTorch it makes finite ones zero, which loses a step silently.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from ..ops.primitive import R
from ..ops.protocol import Ops
from .hyperparameters import at_least_0, check_numbers

__all__ = ["Clip", "by_global_norm", "by_norm", "by_value", "global_norm"]
__dir__ = __all__.copy

_GUARD = 1e-6  # PyTorch's, against a norm of 0


class Clip(ABC):
    """A program `clip(ops, gradients)` that returns all gradients of a step, clipped, in order."""

    @abstractmethod
    def __call__(self, ops: Ops[R], gradients: Sequence[R], /) -> list[R]: ...


def global_norm(ops: Ops[R], gradients: Sequence[R]) -> R:
    """Return √Σ g² over all elements of all gradients, a scalar. `gradients` must not be empty."""
    squares = [ops.sum(ops.mul(g, g)) for g in gradients]
    total = squares[0]
    for square in squares[1:]:
        total = ops.add(total, square)
    return ops.sqrt(total)


def _factor(ops: Ops[R], norm: R, max_norm: float) -> R:
    """Return min(1, max_norm/(norm + 1e-6)), or nan if the norm is nan or infinite."""

    def number(value: float) -> R:
        return ops.full(shape=(), value=value, dtype=norm.dtype)

    known = ops.add(norm, ops.sub(norm, norm))  # norm for finite values: ∞ - ∞ is nan
    return ops.minimum(ops.div(number(max_norm), ops.add(known, number(_GUARD))), number(1.0))


def _times(ops: Ops[R], g: R, factor: R) -> R:
    return ops.mul(g, ops.broadcast_to(factor, shape=g.shape))


@final
@dataclass(frozen=True)
class ByValue(Clip):
    """Limits each element to [-limit, limit]. PyTorch: torch.nn.utils.clip_grad_value_."""

    limit: float = at_least_0()

    def __post_init__(self) -> None:
        check_numbers(self, "by_value")

    def __call__(self, ops: Ops[R], gradients: Sequence[R], /) -> list[R]:
        return [ops.clamp(g, lo=-self.limit, hi=self.limit) for g in gradients]


@final
@dataclass(frozen=True)
class ByNorm(Clip):
    """Multiplies each gradient by min(1, max_norm/(‖g‖ + 1e-6)). PyTorch: clip_grad_norm_ of one parameter."""

    max_norm: float = at_least_0()

    def __post_init__(self) -> None:
        check_numbers(self, "by_norm")

    def __call__(self, ops: Ops[R], gradients: Sequence[R], /) -> list[R]:
        return [_times(ops, g, _factor(ops, global_norm(ops, [g]), self.max_norm)) for g in gradients]


@final
@dataclass(frozen=True)
class ByGlobalNorm(Clip):
    """Multiplies all gradients by min(1, max_norm/(‖all gradients‖ + 1e-6)). PyTorch:
    torch.nn.utils.clip_grad_norm_."""

    max_norm: float = at_least_0()

    def __post_init__(self) -> None:
        check_numbers(self, "by_global_norm")

    def __call__(self, ops: Ops[R], gradients: Sequence[R], /) -> list[R]:
        if not gradients:
            return []
        factor = _factor(ops, global_norm(ops, gradients), self.max_norm)
        return [_times(ops, g, factor) for g in gradients]


by_value = ByValue
by_norm = ByNorm
by_global_norm = ByGlobalNorm
