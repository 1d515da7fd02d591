"""Adam and AdamW: means of the gradient and of its square, with bias correction."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, final

from typing_extensions import override

from ..ops.primitive import R
from ..ops.protocol import Ops
from ..ops.tracebacks import made_by_users
from .optimizer import Optimizer, Rate, Scalars, Slots, at_least_0, number, pair


@dataclass(frozen=True)
class _WithMoments(Optimizer):
    """Updates by running means of the gradient and of its square, with bias correction."""

    elementwise = True

    kept = 2
    _decoupled: ClassVar[bool]

    lr: Rate = 1e-3
    _: KW_ONLY
    betas: tuple[float, float] = number(pair, (0.9, 0.999))
    eps: float = at_least_0(1e-8)
    weight_decay: float = at_least_0(0.0)

    @override
    def scalars(self, t: int) -> dict[str, float]:
        beta1, beta2 = self.betas
        return super().scalars(t) | {"c1": 1 - beta1**t, "c2": 1 - beta2**t}

    @override
    def scalar_ranges(self) -> dict[str, tuple[float, float]]:
        """The corrections grow to 1 from their first values."""
        first = self.scalars(1)
        return {name: (first[name], 1.0) for name in ("c1", "c2")}

    @override
    def update(self, ops: Ops[R], p: R, g: R, slots: Slots[R], scalars: Scalars[R], /) -> tuple[R, Slots[R]]:
        step = ops.adamw_update if self._decoupled else ops.adam_update
        (m, v), (beta1, beta2) = slots, self.betas
        rates = scalars["lr"], scalars["c1"], scalars["c2"]
        p, m, v = step(p, g, m, v, *rates, beta1=beta1, beta2=beta2, eps=self.eps, weight_decay=self.weight_decay)
        return p, (m, v)


@final
@made_by_users
@dataclass(frozen=True)
class Adam(_WithMoments):
    """See adam_update; weight decay is part of the gradient. PyTorch: torch.optim.Adam.

    Raises:
        UsageError: a number out of bounds.
    """

    _decoupled = False


@final
@made_by_users
@dataclass(frozen=True)
class AdamW(_WithMoments):
    """See adamw_update; weight decay shrinks the parameter directly. PyTorch: torch.optim.AdamW.

    Raises:
        UsageError: a number out of bounds.
    """

    _decoupled = True
    weight_decay: float = at_least_0(1e-2)
