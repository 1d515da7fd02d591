"""The passes that a graph goes through before it is planned."""

from __future__ import annotations

from ....ops.closed import Body
from ....ops.primitive import Primitive, Static
from ....ops.types import TensorType
from ..passes.common import common_subexpressions
from ..passes.dead_code import dead_code
from ..passes.expansion import expand
from ..passes.folding import fold_constants
from ..passes.identities import simplify
from ..passes.pipeline import through_loops
from .formulas import FORMULAS

_WHOLE = frozenset({"max_pool", "max_pool_scatter", "max_pool_gather", "avg_pool", "avg_pool_grad", "conv_kernel_grad"})
"""Composites that eager_cpu has a better kernel for than their parts would make."""


def optimise(body: Body) -> Body:
    """The same program in fewer and simpler ops, in the bodies of its loops too."""
    return through_loops(body, _once)


def _once(body: Body) -> Body:
    body = expand(body, _stays)
    return dead_code(common_subexpressions(simplify(fold_constants(body))))


def _stays(primitive: Primitive, types: tuple[TensorType, ...], static: Static) -> bool:
    floats = all(t.dtype.kind in "fib" for t in types)
    return floats and (primitive.name in FORMULAS or primitive.name in _WHOLE)
