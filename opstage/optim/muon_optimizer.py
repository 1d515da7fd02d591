"""Muon: momentum of matrices, orthogonalised by Newton-Schulz iterations."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, final

from typing_extensions import override

from ..ops.dims import Dim, UndecidedDimError, ratio
from ..ops.errors import UsageError
from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import constructed_by_users
from ..ops.types import DType, Shape, show_shape
from .adaptive import AdamW
from .hyperparameters import at_least_0, count, number, require_fraction
from .optimizer import Optimizer, Rate, Scalars, Slot, Slots, average, scaled_rate, shrunk, times

_OTHERS = "others."


@final
@constructed_by_users
@dataclass(frozen=True)
class Muon(Optimizer):
    """Orthogonalised momentum for matrices (Jordan et al. 2024). PyTorch: torch.optim.Muon.

    For a matrix p (r, c): b = momentum·b + (1 - momentum)·g; u = momentum·b + (1 - momentum)·g with `nesterov`, else b;
    u is orthogonalised by `ns_steps` Newton-Schulz iterations from u/max(‖u‖, eps); p = (1 - lr·weight_decay)·p -
    lr·√max(1, r/c)·u. PyTorch iterates in bfloat16, this optimizer in p's dtype.

    `others` updates the parameters that are not matrices: `muon(others=adamw(3e-4))`. Without it such a parameter is an
    error.

    Raises:
        UsageError: a number out of bounds.
    """

    num_slots = 1

    lr: Rate = 1e-3
    _: KW_ONLY
    weight_decay: float = at_least_0(0.1)
    momentum: float = number(require_fraction, 0.95)
    nesterov: bool = True
    eps: float = at_least_0(1e-7)
    ns_steps: int = count(5)
    others: Optimizer | None = None

    @override
    def __post_init__(self) -> None:
        super().__post_init__()
        if self.others is not None and (not isinstance(self.others, Optimizer) or isinstance(self.others, Muon)):
            raise UsageError(f"muon: others must be another optimizer, such as adamw(lr=3e-4), but is {self.others!r}")

    @override
    def having(self, **numbers: Any) -> Optimizer:
        """Change the hyperparameters of all parameters: those of `others` too, if it has them."""
        if self.others is None or "others" in numbers:
            return super().having(**numbers)
        own, theirs = ({f.name for f in fields(each) if f.init} for each in (self, self.others))
        others = self.others.having(**{name: value for name, value in numbers.items() if name in theirs})
        mine = {name: value for name, value in numbers.items() if name in own or name not in theirs}
        return super().having(**mine, others=others)

    @override
    def mover(self, shape: Shape) -> Optimizer:
        return self if len(shape) == 2 or self.others is None else self.others

    @override
    def scaled(self, factor: float) -> Optimizer:
        others = None if self.others is None else self.others.scaled(factor)
        return replace(self, lr=scaled_rate(self.lr, factor), others=others)

    @classmethod
    @override
    def of_all(cls, **numbers: Any) -> Optimizer:
        """Return Muon for matrices and adamw for every other parameter, with the same rate and decay."""
        return cls(
            **numbers, others=AdamW(**{name: numbers[name] for name in ("lr", "weight_decay") if name in numbers})
        )

    @property
    @override
    def state_name(self) -> str:
        return self.name if self.others is None else f"{self.name} with others={self.others.state_name}"

    @override
    def scalars(self, t: int) -> dict[str, float]:
        others = self.others.step_scalars(t) if self.others is not None else {}
        return super().scalars(t) | {_OTHERS + name: value for name, value in others.items()}

    @override
    def scalar_ranges(self) -> dict[str, tuple[float, float]]:
        others = self.others.scalar_ranges() if self.others is not None else {}
        return {_OTHERS + name: ends for name, ends in others.items()}

    @override
    def slots(self, shape: Shape, dtype: DType, label: str) -> tuple[Slot, ...]:
        if len(shape) == 2:
            return super().slots(shape, dtype, label)
        if self.others is None:
            raise UsageError(
                f"muon updates matrices, but parameter {label} is {show_shape(shape)}; give muon(…, others=adamw(…)) "
                "an optimizer for such parameters"
            )
        return self.others.slots(shape, dtype, label)

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        if len(p.shape) != 2 and self.others is not None:
            theirs = {name.removeprefix(_OTHERS): ref for name, ref in scalars.items() if name.startswith(_OTHERS)}
            p, after = self.others.updater(ops, p, g, slots, theirs)
            return p, tuple(after)
        lr = scalars["lr"]
        buffer = average(ops, slots[0], g, self.momentum)
        direction = average(ops, buffer, g, self.momentum) if self.nesterov else buffer
        direction = _orthogonalize(ops, direction, self.ns_steps, self.eps)
        rows, columns = p.shape
        one = ops.full(shape=(), value=1.0, dtype=p.dtype)
        aspect = ops.full(shape=(), value=ratio(rows, columns), dtype=p.dtype)
        rate = ops.mul(lr, ops.sqrt(ops.maximum(one, aspect)))
        return ops.sub(shrunk(ops, p, lr, self.weight_decay), times(ops, direction, rate)), (buffer,)


_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients a, b, c of the iteration x <- a·x + (b·s + c·s²)·x with s = x·xᵀ."""


def _is_tall(rows: Dim, columns: Dim) -> bool:
    """Return whether to work on xᵀ, whose product with itself is smaller; either way gives the same result if the sizes
    are open."""
    try:
        return bool(rows > columns)
    except UndecidedDimError:
        return False


def _orthogonalize(ops: Ops[R], x: R, steps: int, eps: float) -> R:
    """Return about the nearest semi-orthogonal matrix, with singular values in about 0.7 … 1.2."""
    tall = _is_tall(*x.shape)
    if tall:
        x = ops.transpose2d(x)
    norm = ops.sqrt(ops.sum(ops.mul(x, x)))
    floor = ops.full(shape=(), value=eps, dtype=x.dtype)
    x = ops.div(x, ops.broadcast_to(ops.maximum(norm, floor), shape=x.shape))
    a, b, c = _NEWTON_SCHULZ
    for _ in range(steps):
        gram = ops.matmul(x, ops.transpose2d(x))
        polynomial = ops.add(ops.scale(gram, c=b), ops.scale(ops.matmul(gram, gram), c=c))
        x = ops.add(ops.scale(x, c=a), ops.matmul(polynomial, x))
    return ops.transpose2d(x) if tall else x
