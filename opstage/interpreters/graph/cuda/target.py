"""What kernels on a GPU want, and the passes that a graph goes through before they are written."""

from __future__ import annotations

from ....ops.catalogue.reduction import REDUCE_MEAN, SUM
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ...codegen.formulas import FORMULAS
from ...codegen.target import Target
from ...eager_cuda.kernels import KERNELS
from .. import passes
from ..graph import Graph

CUDA = Target(frozenset(), strided=False, batch_axes=1, index_checks=False, both_sums=False, few_rows=256)

_EXPANDED = frozenset({SUM, REDUCE_MEAN})
"""Composites whose parts go into a generated kernel, which saves more than their own kernels do."""


def _stays(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    return primitive in FORMULAS or (primitive in KERNELS and primitive not in _EXPANDED)


PASSES = passes.standard(_stays, loops=True)


def optimise(graph: Graph) -> Graph:
    """The same program in fewer and simpler ops, without loops: each of their turns is written out."""
    return passes.optimise(graph, PASSES)[0]
