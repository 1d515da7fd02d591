"""`Ops`: the language in which models, losses, derivative rules and optimizers are written.

Refs are positional, static parameters keyword-only. Each op is in `opstage/ops/catalogue/`, by family: its shape and
derivative rules, and the method that documents it. This file lists the families.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from .arguments import Axes, IntOrTuple, Number, ShapeLike
from .catalogue.activation import ActivationOps
from .catalogue.attention import AttentionOps
from .catalogue.biased_attention import BiasedAttentionOps
from .catalogue.collective import CollectiveOps
from .catalogue.convolution import ConvolutionOps
from .catalogue.determinants import DeterminantsOps
from .catalogue.elementwise import ElementwiseOps
from .catalogue.factorizations import FactorizationsOps
from .catalogue.fourier import FourierOps
from .catalogue.grouped import GroupedOps
from .catalogue.indexing import IndexingOps
from .catalogue.layout import LayoutOps
from .catalogue.linalg import LinalgOps
from .catalogue.logic import LogicOps
from .catalogue.loss import LossOps
from .catalogue.normalization import NormalizationOps
from .catalogue.pooling import PoolingOps
from .catalogue.random import RandomOps
from .catalogue.reduction import ReductionOps
from .catalogue.rounding import RoundingOps
from .catalogue.sequence import SequenceOps
from .catalogue.slicing import SlicingOps
from .catalogue.solving import SolvingOps
from .catalogue.transcendental import TranscendentalOps
from .errors import ProgramError
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
    SlicingOps[R],
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
    BiasedAttentionOps[R],
    LossOps[R],
    RandomOps[R],
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
