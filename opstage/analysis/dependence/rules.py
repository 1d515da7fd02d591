"""Rules by which ops read, by primitive; pointwise ops have one rule by their kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ...ops import convolution, fourier, indexing, layout, logic, pooling, random, reduction, sequence, slicing
from ...ops import factorization as factorizations
from ...ops import linalg as determinants
from ...ops import linalg as solving
from ...ops import matmul as linalg
from ...ops.primitive import Kind, Primitive
from ..domain import OpCall, Rule
from .elementwise import pointwise
from .layout import (
    broadcast_to,
    concat,
    draw,
    full,
    gather_rows,
    iota,
    pad,
    permute,
    reshape,
    scatter_add_rows,
    slice_,
    unchanged,
)
from .reduction import convolve, matmul, mixes, order, pool, reduce, running


def _axis(call: OpCall) -> tuple[int]:
    return (call.static["axis"],)


def _complex(call: OpCall) -> tuple[int, int]:
    """The axis, and the one of real and imaginary parts."""
    return call.static["axis"], -1


def _matrices(call: OpCall) -> tuple[int, int]:
    return (-2, -1)


def _plane(call: OpCall) -> tuple[int, ...]:
    return tuple(range(-len(call.static["kernel"]), 0))


_matrix = mixes(_matrices)

RULES: Final[Mapping[Primitive, Rule]] = {
    logic.DETACH: unchanged,
    logic.FULL: full,
    logic.IOTA: iota,
    random.RAND_UNIFORM: draw,
    random.RAND_NORMAL: draw,
    layout.PERMUTE: permute,
    layout.RESHAPE: reshape,
    layout.BROADCAST_TO: broadcast_to,
    slicing.CONCAT: concat,
    slicing.SLICE: slice_,
    slicing.PAD: pad,
    reduction.REDUCE_SUM: reduce,
    reduction.REDUCE_MAX: reduce,
    reduction.ARGMAX: reduce,
    linalg.MATMUL: matmul,
    linalg.BMM: matmul,
    sequence.CUMSUM: running,
    sequence.LINEAR_RECURRENCE: running,
    sequence.ARGSORT: order,
    indexing.GATHER_ROWS: gather_rows,
    indexing.SCATTER_ADD_ROWS: scatter_add_rows,
    convolution.CONV: convolve(transposed=False),
    convolution.CONV_TRANSPOSE: convolve(transposed=True),
    pooling.MAX_POOL: pool,
    pooling.AVG_POOL: pool,
    pooling.AVG_POOL_GRAD: mixes(_plane),
    pooling.MAX_POOL_SCATTER: mixes(_plane),
    pooling.MAX_POOL_GATHER: mixes(_plane),
    fourier.FFT: mixes(_complex),
    fourier.RFFT: mixes(_axis),
    fourier.IRFFT: mixes(_complex),
    solving.SOLVE: _matrix,
    solving.TRIANGULAR_SOLVE: _matrix,
    solving.CHOLESKY: _matrix,
    determinants.DET: _matrix,
    determinants.COFACTOR: _matrix,
    determinants.SLOGDET: _matrix,
    factorizations.EIGH: _matrix,
    factorizations.QR: _matrix,
    factorizations.SVD: _matrix,
}
KINDS: Final[Mapping[Kind, Rule]] = {Kind.POINTWISE: pointwise}
