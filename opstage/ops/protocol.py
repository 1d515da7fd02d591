"""`Ops`: the language in which models, losses, derivative rules and optimizers are written.

Refs are positional, static parameters keyword-only. Each op is documented at its method in `opstage/ops/methods/`, by
family; its shape and derivative rules are in `opstage/ops/catalogue/`. This file lists the families.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .arguments import Axes, IntOrTuple, Number, ShapeLike
from .catalogue.elementwise import ElementwiseOps
from .catalogue.reduction import ReductionOps
from .errors import ProgramError
from .methods.activation import ActivationOps
from .methods.attention import AttentionOps
from .methods.collective import CollectiveOps
from .methods.convolution import ConvolutionOps
from .methods.determinants import DeterminantsOps
from .methods.factorizations import FactorizationsOps
from .methods.fourier import FourierOps
from .methods.grouped import GroupedOps
from .methods.indexing import IndexingOps
from .methods.layout import LayoutOps
from .methods.linalg import LinalgOps
from .methods.logic import LogicOps
from .methods.loss import LossOps
from .methods.normalization import NormalizationOps
from .methods.pooling import PoolingOps
from .methods.random import RandomOps
from .methods.rounding import RoundingOps
from .methods.sequence import SequenceOps
from .methods.solving import SolvingOps
from .methods.transcendental import TranscendentalOps
from .methods.update import UpdateOps
from .other_names import no_such_op
from .primitive import R
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
    IndexingOps[R],
    LinalgOps[R],
    GroupedOps[R],
    SolvingOps[R],
    DeterminantsOps[R],
    FactorizationsOps[R],
    FourierOps[R],
    ConvolutionOps[R],
    PoolingOps[R],
    NormalizationOps[R],
    AttentionOps[R],
    LossOps[R],
    RandomOps[R],
    UpdateOps[R],
    CollectiveOps[R],
):
    """An interpreter of programs over refs of type R.

    A subclass supplies `bind` and the other methods of `Structure`. The ops are built on them and mean the same
    everywhere: a subclass that redefines an op's name raises ProgramError.
    """

    __slots__ = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        taken = sorted(OPS.intersection(vars(cls)))
        if taken:
            raise ProgramError(
                f"class {cls.__name__} defines {', '.join(taken)}, which every interpreter has as an op made of bind; "
                "say in bind what the op is to do, or choose another name"
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
