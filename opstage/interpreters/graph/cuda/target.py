"""The passes that run on a graph before its GPU kernels are generated."""

from __future__ import annotations

from ....compiler.codegen.formulas import FORMULAS
from ....ops.catalogue.reduction import REDUCE_MEAN, SUM
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ...eager_cuda.kernels import KERNELS
from ...eager_cuda.kernels.update import update_kernel
from .. import passes
from ..graph import Graph

_EXPANDED = frozenset({SUM, REDUCE_MEAN})
"""Composites that are decomposed so that they fuse into generated kernels, which is faster than their own kernels."""


def _stays(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    has_kernel = primitive in KERNELS or update_kernel(primitive) is not None
    return primitive in FORMULAS or (has_kernel and primitive not in _EXPANDED)


PASSES = passes.standard(_stays, loops=True)


def optimise(graph: Graph) -> Graph:
    """Optimise the program; loops are unrolled."""
    return passes.optimise(graph, PASSES)[0]
