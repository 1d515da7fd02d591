"""Matrix products as BLAS calls, divided among the workers."""

from __future__ import annotations

from ....ops.closed import Equation
from ....ops.types import dtype_name
from ...codegen.cpu.words import LoweredLoop, Word, address_in
from ...codegen.lowered import Lowered
from ...codegen.matrices import batch_axes, leading_dimension
from ...native.gemm import cut_product, gemm_kernel, gemm_words


def product_loop(lowered: Lowered, e: Equation) -> LoweredLoop | None:
    """Return the loop of matmul or bmm; None without a callable BLAS."""
    a, b = (lowered.views[slot] for slot in e.inputs)
    dtype = dtype_name(lowered.types[e.outputs[0]].dtype)
    kernel = gemm_kernel(dtype)
    if kernel is None:
        return None
    left, right, axes = leading_dimension(a), leading_dimension(b), batch_axes(a, b)
    assert left is not None and right is not None
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    axes = [(1, 0, 0)] * (2 - len(axes)) + axes
    (outer, a_outer, b_outer), (inner, a_inner, b_inner) = axes
    batch = outer * inner
    size = lowered.types[e.outputs[0]].dtype.itemsize
    cut = cut_product(dtype, m, n, k, batch)
    at: tuple[Word, Word, Word] = (
        address_in(lowered, a),
        address_in(lowered, b),
        address_in(lowered, lowered.views[e.outputs[0]]),
    )
    transposed, leading = (left.transposed, right.transposed), (left.dimension, right.dimension)
    steps = a_outer * size, a_inner * size, b_outer * size, b_inner * size
    words = gemm_words(dtype, at, (m, n, k), transposed, leading, cut, inner=inner, steps=steps)
    return LoweredLoop(kernel, batch * cut.parts, words, ())
