"""`Ops`: the language in which models, losses, derivative rules and optimizers are written.

Refs are positional, static parameters keyword-only. Each op is in the file of its family in `opstage/ops/`: its
shape and derivative rules, the method that documents it, and functions composed of it. This file lists the families.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from .activation import ActivationOps
from .attention import AttentionOps
from .collective import CollectiveOps
from .convolution import ConvolutionOps
from .elementwise import ElementwiseOps
from .errors import ProgramError
from .factorization import FactorizationOps
from .fourier import FourierOps
from .hints import no_such_op
from .indexing import IndexingOps
from .layout import LayoutOps
from .linalg import LinalgOps
from .logic import LogicOps
from .loss import LossOps
from .matmul import MatmulOps
from .normalization import NormalizationOps
from .pooling import PoolingOps
from .primitive import R
from .random import RandomOps
from .reduction import ReductionOps
from .rounding import RoundingOps
from .sequence import SequenceOps
from .slicing import SlicingOps
from .static_arguments import Axes, IntOrTuple, Number, ShapeLike
from .transcendental import TranscendentalOps
from .types import DType, Shape


class Ref(Protocol):
    """A tensor in a program: the interface of every interpreter's refs."""

    @property
    def shape(self) -> Shape: ...
    @property
    def dtype(self) -> DType: ...


class Ops(
    ElementwiseOps[R],
    RoundingOps[R],
    TranscendentalOps[R],
    ActivationOps[R],
    LogicOps[R],
    ReductionOps[R],
    SequenceOps[R],
    LayoutOps[R],
    SlicingOps[R],
    IndexingOps[R],
    MatmulOps[R],
    LinalgOps[R],
    FactorizationOps[R],
    FourierOps[R],
    ConvolutionOps[R],
    PoolingOps[R],
    NormalizationOps[R],
    AttentionOps[R],
    LossOps[R],
    RandomOps[R],
    CollectiveOps[R],
):
    """An interpreter of programs over refs of type R.

    A subclass supplies `bind` and the other methods of `DispatchInterface`. The ops are built on them and mean the same
    everywhere: a subclass that redefines an op's name raises ProgramError.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        taken = sorted(OPS.intersection(vars(cls)))
        if taken:
            raise ProgramError(
                f"class {cls.__name__} defines {', '.join(taken)}, an op that every interpreter computes by bind; "
                "define the op in bind, or choose another name"
            )

    if not TYPE_CHECKING:  # type checkers should report unknown names

        def __getattr__(self, name):
            raise no_such_op(self, name, OPS)


OPS = frozenset(
    name
    for family in Ops.__bases__
    for name, method in vars(family).items()
    if callable(method) and not name.startswith("_")
)
"""The names of all ops: methods built on `bind`, the same on every interpreter."""

__all__ = ["OPS", "Axes", "IntOrTuple", "Number", "Ops", "R", "Ref", "ShapeLike"]
__dir__ = __all__.copy


# Programs: whose they are, and what a training program returns besides its loss ---------------------------------------


@dataclass(frozen=True)
class Aux:
    """The second result of `(ops, params, state, *batch) -> (loss, Aux(state=, metrics=))`.

    state     the new state (running statistics): a pytree shaped like the one passed in; it commits with the step
    metrics   scalars to report, by name
    """

    state: Any = None
    metrics: Mapping[str, Any] = field(default_factory=dict)


def loss_and_aux(result: Any) -> tuple[Any, Aux]:
    """Return the loss of a training program's result, and its Aux (empty if there is none). Raises ProgramError."""
    loss, aux = result if isinstance(result, tuple) and len(result) == 2 else (result, Aux())
    if not isinstance(aux, Aux):
        raise ProgramError(
            f"a training program returns its loss, or (loss, Aux(state=, metrics=)); got {type(aux).__name__}"
        )
    return loss, aux


def is_ours(f: Callable[..., Any]) -> bool:
    """Return whether a function, method or callable is Opstage's, whose programs call named ops alone."""
    return (getattr(f, "__module__", None) or "").startswith("opstage.")
