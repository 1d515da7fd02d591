"""`BoundOps`: every method of `Ops` written once, as a call of `bind`; a family a file, as in the catalogue."""

from __future__ import annotations

from ..protocol import R
from .activation import ActivationOps
from .attention import AttentionOps
from .convolution import ConvolutionOps
from .elementwise import ElementwiseOps
from .indexing import IndexingOps
from .layout import LayoutOps
from .linalg import LinalgOps
from .logic import LogicOps
from .loss import LossOps
from .normalization import NormalizationOps
from .pooling import PoolingOps
from .random import RandomOps
from .reduction import ReductionOps
from .update import UpdateOps


class BoundOps(
    ElementwiseOps[R],
    ActivationOps[R],
    LogicOps[R],
    ReductionOps[R],
    LayoutOps[R],
    IndexingOps[R],
    LinalgOps[R],
    ConvolutionOps[R],
    PoolingOps[R],
    NormalizationOps[R],
    AttentionOps[R],
    LossOps[R],
    RandomOps[R],
    UpdateOps[R],
):
    """An interpreter supplies `bind` and the structural methods of `Ops`; everything else is here."""

    __slots__ = ()
