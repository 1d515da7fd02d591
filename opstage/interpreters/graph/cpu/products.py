"""Matrix products, divided among the workers: by a kernel of our own where it is faster, else as BLAS calls."""

from __future__ import annotations

from ....ops.closed import Equation
from ....ops.types import dtype_name
from ...codegen.cpu.words import LoweredLoop, Scratch, Word, address_in
from ...codegen.lowered import Lowered
from ...codegen.matrices import batch_axes, leading_dimension
from ...native.blocked_product import blocked_kernel, blocked_words, cut_blocked, serves
from ...native.gemm import cut_product, gemm_kernel, gemm_words


def product_loop(lowered: Lowered, e: Equation) -> LoweredLoop | None:
    """Return the loop of matmul or bmm; None if it is the BLAS's and that cannot be called."""
    a, b = (lowered.views[slot] for slot in e.inputs)
    dtype = dtype_name(lowered.types[e.outputs[0]].dtype)
    left, right, axes = leading_dimension(a), leading_dimension(b), batch_axes(a, b)
    assert left is not None and right is not None
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    axes = [(1, 0, 0)] * (2 - len(axes)) + axes
    (outer, a_outer, b_outer), (inner, a_inner, b_inner) = axes
    batch = outer * inner
    size = lowered.types[e.outputs[0]].dtype.itemsize
    at: tuple[Word, Word, Word] = (
        address_in(lowered, a),
        address_in(lowered, b),
        address_in(lowered, lowered.views[e.outputs[0]]),
    )
    transposed, leading = (left.transposed, right.transposed), (left.dimension, right.dimension)
    steps = a_outer * size, a_inner * size, b_outer * size, b_inner * size
    if serves(dtype, m, n, k, right.transposed):
        blocks = cut_blocked(dtype, m, n, k, batch, *left)
        room = blocks.workspace(dtype)
        workspace: tuple[Word, int] = Scratch("product", room), room
        words = blocked_words(at, workspace, (m, n, k), transposed, leading, blocks, inner=inner, steps=steps)
        return LoweredLoop(blocked_kernel(dtype), batch * blocks.tasks(m, n), words, ())
    kernel = gemm_kernel(dtype)
    if kernel is None:
        return None
    cut = cut_product(dtype, m, n, k, batch)
    words = gemm_words(dtype, at, (m, n, k), transposed, leading, cut, inner=inner, steps=steps)
    return LoweredLoop(kernel, batch * cut.parts, words, ())
