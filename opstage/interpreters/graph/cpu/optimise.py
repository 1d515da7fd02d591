"""The passes that run on a graph before it is planned."""

from __future__ import annotations

from ....compiler.codegen.formulas import FORMULAS
from ....compiler.native import find_blas
from ....ops.catalogue import has_kernel
from ....ops.convolution import CONV_KERNEL_GRAD
from ....ops.matmul import GROUPED_MATMUL, GROUPED_OUTER
from ....ops.pooling import AVG_POOL, AVG_POOL_GRAD, MAX_POOL, MAX_POOL_GATHER, MAX_POOL_SCATTER
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from .. import passes
from ..graph import Graph

_WHOLE = frozenset({MAX_POOL, MAX_POOL_SCATTER, MAX_POOL_GATHER, AVG_POOL, AVG_POOL_GRAD, CONV_KERNEL_GRAD})
"""Composites whose eager_cpu kernel is faster than their decomposition."""

_GROUPED = frozenset({GROUPED_MATMUL, GROUPED_OUTER})
"""Those too, where there is a BLAS to call."""


def _stays(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    floats = all(t.dtype.kind in "fib" for t in types)
    whole = primitive in _WHOLE or (primitive in _GROUPED and find_blas() is not None)
    return floats and (whole or primitive in FORMULAS or has_kernel("cpu", primitive))


PASSES = passes.standard(_stays)


def optimise(graph: Graph, *, checked: bool = False) -> tuple[Graph, passes.Notes]:
    """Optimise the program and the bodies of its loops; return notes about each pass.

    With `checked`, the graph's invariants are checked after every pass.
    """
    return passes.optimise(graph, PASSES, checked=checked)
