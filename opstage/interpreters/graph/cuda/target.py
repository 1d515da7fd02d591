"""The passes that a graph goes through before its kernels for a GPU are written."""

from __future__ import annotations

from ....ops.catalogue.reduction import REDUCE_MEAN, SUM
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ...codegen.formulas import FORMULAS
from ...eager_cuda.kernels import KERNELS
from .. import passes
from ..graph import Graph

_EXPANDED = frozenset({SUM, REDUCE_MEAN})
"""Composites whose parts go into a generated kernel, which saves more than their own kernels do."""


def _stays(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    return primitive in FORMULAS or (primitive in KERNELS and primitive not in _EXPANDED)


PASSES = passes.standard(_stays, loops=True)


def optimise(graph: Graph) -> Graph:
    """The same program in fewer and simpler ops, without loops, which are unrolled."""
    return passes.optimise(graph, PASSES)[0]
