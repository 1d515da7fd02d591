"""Whether the samples of a batch stay apart: then one backward pass bounds all of them, each by its own box.

A tensor is *separate* if the elements of sample b are the b-th of as many equal parts of it, in row-major order. Inputs
with the batch along their leading axis are, and each op here keeps it so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...ops.catalogue.convolution import CONV, CONV_TRANSPOSE
from ...ops.catalogue.layout import BROADCAST_TO, PERMUTE, RESHAPE
from ...ops.catalogue.linalg import BMM, LINEAR, MATMUL
from ...ops.catalogue.pooling import AVG_POOL, MAX_POOL, SMOOTH_MAX_POOL
from ...ops.catalogue.reduction import LOG_SOFTMAX, REDUCE_MAX, REDUCE_MIN, REDUCE_SUM, SOFTMAX
from ...ops.catalogue.slicing import CONCAT, PAD, SLICE, STACK
from ...ops.kinds import Kind
from ...ops.primitive import Primitive, Static
from ...ops.types import Shape

_PADDED = {CONV, CONV_TRANSPOSE}
_POOLS = {AVG_POOL, MAX_POOL, SMOOTH_MAX_POOL}
_REDUCTIONS = {REDUCE_SUM, REDUCE_MAX, REDUCE_MIN}
_ALONG = {SOFTMAX, LOG_SOFTMAX}


class NotSeparate(Exception):
    """An op that mixes the samples of a batch, or of which that is not known."""


def stays_separate(samples: int, primitive: Primitive, refs: Sequence[Any], static: Static, shape: Shape) -> None:
    """Raise NotSeparate unless the result of an op is separate where its operands that depend on boxes are."""
    depends = [ref for ref in refs if ref.relation is not None or not ref.interval.point]
    if not _keeps(primitive, refs, depends, static, shape) or not shape or int(shape[0]) % samples:
        raise NotSeparate(f"{primitive} may mix the samples of a batch")


def _only(refs: Sequence[Any], ref: Any) -> bool:
    return len(refs) == 1 and refs[0] is ref


def _keeps(primitive: Primitive, refs: Sequence[Any], depends: Sequence[Any], static: Static, shape: Shape) -> bool:
    first = depends[0].shape
    if primitive.kind is Kind.POINTWISE or primitive is RESHAPE:
        return True
    if primitive is LINEAR:
        return _only(depends, refs[-1]) and len(first) > 1
    if primitive is MATMUL:
        return _only(depends, refs[0])
    if primitive is BMM:
        return len(first) > 2 or _only(depends, refs[0])
    if primitive in _PADDED:
        return _only(depends, refs[-1]) and len(first) == len(refs[0].shape)
    if primitive in _POOLS:
        return len(first) == len(static["kernel"]) + 2
    if primitive in _REDUCTIONS:
        return 0 not in static["axes"]
    if primitive in _ALONG or primitive in (CONCAT, SLICE):
        return bool(static["axis"] != 0)
    if primitive is STACK:
        return bool(static["axis"] != 0)
    if primitive is PERMUTE:
        return bool(static["axes"][0] == 0)
    if primitive is PAD:
        return tuple(static["padding"][0]) == (0, 0) and not static["interior"][0]
    if primitive is BROADCAST_TO:
        return len(shape) == len(first) and shape[0] == first[0]
    return False
