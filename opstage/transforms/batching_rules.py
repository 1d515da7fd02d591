"""How each op runs on a batch of examples: one rule for a family of ops.

A rule is `(ops, primitive, refs, static) -> results`, `ops` being the `Batching`. At least one of the refs has an axis
of examples in front. A result is an inner value with the examples in front, or a ref of `ops`. Pointwise ops take
`batched_as_is`, composites need a rule only where their own kernel on the batch is better than their decomposition, and
a core op without a rule runs on one example after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..ops import (
    attention,
    collective,
    convolution,
    factorization,
    fourier,
    indexing,
    layout,
    linalg,
    logic,
    matmul,
    pooling,
    reduction,
    sequence,
    slicing,
)
from ..ops.arrangement import moveaxis
from ..ops.dims import floor_div, is_one
from ..ops.dispatch import VARY_LIKE
from ..ops.primitive import Primitive, Static
from ..ops.types import INT64, TensorType
from .batched_control import batched_remat, batched_scan, batched_switch, batched_while
from .cond import SWITCH
from .remat import REMAT
from .scan import SCAN
from .while_loop import WHILE

if TYPE_CHECKING:
    from .batching import Batched, Batching

Rule: TypeAlias = "Callable[[Batching[Any], Primitive, Sequence[Batched], Static], Sequence[Any]]"

# Ops on leading axes of any number ------------------------------------------------------------------------------------


def batched_as_is(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    """Run an op that means the same with one more axis before those of every operand."""
    return ops.inner.bind(primitive, tuple(map(ops.stretched, refs)), static)


def _with_static(change: Callable[..., dict[str, Any]]) -> Rule:
    """Return a rule that runs the op itself with one more first axis, and static parameters from `change(**static)`."""

    def rule(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
        return ops.inner.bind(primitive, tuple(map(ops.stretched, refs)), {**static, **change(**static)})

    return rule


_next_axis = _with_static(lambda *, axis, **_: {"axis": axis + 1})
_next_axes = _with_static(lambda *, axes, **_: {"axes": tuple([axis + 1 for axis in axes])})

# Shapes ---------------------------------------------------------------------------------------------------------------


def _reshape(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    (x,) = refs
    (out,) = ops.infer(primitive, (TensorType(x.shape, x.dtype),), static)  # a size of -1 is that of one example
    return (ops.inner.reshape(x.value, shape=(ops.size, *out.shape)),)


def _broadcast_to(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    (x,), shape = refs, static["shape"]
    ones = (1,) * (len(shape) - len(x.shape))
    value = ops.inner.reshape(x.value, shape=(ops.size, *ones, *x.shape)) if ones else x.value
    return (ops.inner.broadcast_to(value, shape=(ops.size, *shape)),)


def _vary_like(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    x, like = refs
    return (ops.ref(ops.inner.vary_like(x.value, like.value), x.batched),)


# Products -------------------------------------------------------------------------------------------------------------


def _matmul(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    (x, y), inner = refs, ops.inner
    if x.batched and y.batched:
        if is_one(x.shape[1]):  # outer products, as in the gradients of examples: a multiplication
            shape = (ops.size, x.shape[0], y.shape[1])
            return (inner.mul(*[inner.broadcast_to(each.value, shape=shape) for each in refs]),)
        return (inner.bmm(x.value, y.value),)
    if x.batched:  # the rows of all examples in one product
        _, m, k = x.value.shape
        out = inner.matmul(inner.reshape(x.value, shape=(ops.size * m, k)), y.value)
        return (inner.reshape(out, shape=(ops.size, m, y.shape[1])),)
    _, k, n = y.value.shape  # the columns of all examples
    columns = inner.reshape(inner.permute(y.value, axes=(1, 0, 2)), shape=(k, ops.size * n))
    out = inner.reshape(inner.matmul(x.value, columns), shape=(x.shape[0], ops.size, n))
    return (inner.permute(out, axes=(1, 0, 2)),)


def _linear(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    if any(ref.batched for ref in refs[:-1]):
        return ops.decompose(primitive, tuple(refs), static)
    return ops.inner.bind(primitive, tuple([ref.value for ref in refs]), static)


def _attention(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    rank, values = len(refs[0].shape), []
    for i, ref in enumerate(refs):
        is_mask = i == 3 and static["has_mask"]
        value = ref.value if is_mask and not ref.batched else ops.stretched(ref)
        if ref.batched and len(ref.shape) < rank:  # a mask, whose axes are counted from the last
            value = ops.inner.reshape(value, shape=(ops.size, *(1,) * (rank - len(ref.shape)), *ref.shape))
        values.append(value)
    return ops.inner.bind(primitive, tuple(values), static)


# Images: (C, *S), or (N, C, *S) where the examples are more images ----------------------------------------------------


def _pool(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    values = list(map(ops.stretched, refs))
    if len(refs[-1].shape) != len(static["kernel"]) + 2:
        return ops.inner.bind(primitive, tuple(values), static)
    count = refs[-1].shape[0]
    values = [ops.inner.reshape(v, shape=(ops.size * count, *ref.shape[1:])) for v, ref in zip(values, refs)]
    outs = ops.inner.bind(primitive, tuple(values), static)
    return [ops.inner.reshape(out, shape=(ops.size, count, *out.shape[1:])) for out in outs]


def _conv(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    """Treat examples as more images if they share the kernel, otherwise as more groups of channels."""
    kernel, *bias, x = refs
    inner, rank = ops.inner, len(kernel.shape) - 2
    several = len(x.shape) == rank + 2
    if not any(ref.batched for ref in refs[:-1]):
        value = inner.reshape(x.value, shape=(ops.size * x.shape[0], *x.shape[1:])) if several else x.value
        (out,) = inner.bind(primitive, (*[ref.value for ref in refs[:-1]], value), static)
        return (inner.reshape(out, shape=(ops.size, x.shape[0], *out.shape[1:])) if several else out,)
    if not isinstance(ops.size, int) or ops.size == 0:  # `groups` is an int of at least 1
        return ops.one_by_one(primitive, refs, static)
    kernels = inner.reshape(ops.stretched(kernel), shape=(ops.size * kernel.shape[0], *kernel.shape[1:]))
    groups = {**static, "groups": ops.size * static["groups"], "has_bias": False}
    (out,) = inner.bind(primitive, (kernels, _as_channels(ops, x, rank)), groups)
    at = len(out.shape) - rank - 1
    channels = floor_div(out.shape[at], ops.size)
    out = inner.reshape(out, shape=(*out.shape[:at], ops.size, channels, *out.shape[at + 1 :]))
    if several:
        out = moveaxis(inner, out, source=1, target=0)
    for b in bias:
        column = inner.reshape(ops.stretched(b), shape=(ops.size, *(1,) * at, *b.shape, *(1,) * rank))
        out = inner.add(out, inner.broadcast_to(column, shape=out.shape))
    return (out,)


def _conv_kernel_grad(
    ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static
) -> Sequence[Any]:
    if not isinstance(ops.size, int) or ops.size == 0:
        return ops.one_by_one(primitive, refs, static)
    rank = len(static["kernel"])
    values = tuple([_as_channels(ops, ref, rank) for ref in refs])
    (out,) = ops.inner.bind(primitive, values, {**static, "groups": ops.size * static["groups"]})
    return (ops.inner.reshape(out, shape=(ops.size, floor_div(out.shape[0], ops.size), *out.shape[1:])),)


def _as_channels(ops: Batching[Any], x: Batched, rank: int) -> Any:
    """(B, N, C, *S) as (N, B * C, *S), or (B, C, *S) as (B * C, *S)."""
    value, inner = ops.stretched(x), ops.inner
    if len(x.shape) == rank + 2:
        value = moveaxis(inner, value, source=1, target=0)
    at = len(x.shape) - rank - 1
    return inner.reshape(value, shape=(*value.shape[:at], ops.size * value.shape[at + 1], *value.shape[at + 2 :]))


# Indices --------------------------------------------------------------------------------------------------------------


def _gather_rows(ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static) -> Sequence[Any]:
    x, idx = refs
    if not x.batched:
        return ops.inner.bind(primitive, (x.value, idx.value), static)
    return ops.inner.bind(primitive, (_all_rows(ops, x), _rows_of_all(ops, idx, x.shape[0], static["mode"])), static)


def _scatter_add_rows(
    ops: Batching[Any], primitive: Primitive, refs: Sequence[Batched], static: Static
) -> Sequence[Any]:
    x, v, idx = refs
    operands = (_all_rows(ops, x), ops.stretched(v), _rows_of_all(ops, idx, x.shape[0], static["mode"]))
    return [ops.inner.reshape(out, shape=(ops.size, *x.shape)) for out in ops.inner.bind(primitive, operands, static)]


def _all_rows(ops: Batching[Any], x: Batched) -> Any:
    return ops.inner.reshape(ops.stretched(x), shape=(ops.size * x.shape[0], *x.shape[1:]))


def _rows_of_all(ops: Batching[Any], idx: Batched, rows: Any, mode: str) -> Any:
    """Turn indices into the rows of each example into indices into the rows of all; -1 stands for an index out of the
    range of its example, and is out of range as well."""
    inner, shape = ops.inner, (ops.size, *idx.shape)
    index = inner.cast(ops.stretched(idx), dtype=INT64)
    count = inner.full(shape=shape, value=rows, dtype=INT64)
    start = inner.mul(inner.iota(shape=shape, axis=0), count)
    if mode == "raise":  # the error names the index, and the rows of one example
        return inner.add(inner.gather_rows(inner.iota(shape=(rows,)), index), start)
    outside = inner.full(shape=shape, value=-1, dtype=INT64)
    valid = inner.logical_and(inner.less(outside, index), inner.less(index, count))
    return inner.select(valid, inner.add(index, start), outside)


# The table ------------------------------------------------------------------------------------------------------------

_AS_IS = (
    matmul.BMM, logic.DETACH, linalg.SOLVE, linalg.TRIANGULAR_SOLVE, linalg.CHOLESKY, linalg.DET, linalg.COFACTOR,
    linalg.SLOGDET, factorization.EIGH, factorization.QR, factorization.SVD,
    collective.VARY, collective.ALL_REDUCE, collective.ALL_MAX, collective.SHIFT,
)  # fmt: skip
_NEXT_AXIS = (
    reduction.ARGMAX, sequence.CUMSUM, sequence.ARGSORT, sequence.LINEAR_RECURRENCE, slicing.CONCAT, slicing.SLICE,
    fourier.FFT, fourier.RFFT, fourier.IRFFT,
    reduction.SOFTMAX, reduction.SOFTMAX_GRAD, reduction.LOG_SOFTMAX, reduction.LOG_SOFTMAX_GRAD,
)  # fmt: skip
_NEXT_AXES = (reduction.REDUCE_SUM, reduction.REDUCE_MAX, reduction.REDUCE_MEAN, reduction.REDUCE_MIN)
_POOLS = (
    pooling.MAX_POOL, pooling.MAX_POOL_SCATTER, pooling.MAX_POOL_GATHER, pooling.AVG_POOL, pooling.AVG_POOL_GRAD,
)  # fmt: skip

RULES: dict[Primitive, Rule] = {
    **dict.fromkeys(_AS_IS, batched_as_is),
    **dict.fromkeys(_NEXT_AXIS, _next_axis),
    **dict.fromkeys(_NEXT_AXES, _next_axes),
    **dict.fromkeys(_POOLS, _pool),
    **dict.fromkeys((convolution.CONV, convolution.CONV_TRANSPOSE), _conv),
    **dict.fromkeys(
        (collective.ALL_GATHER, collective.REDUCE_SCATTER, collective.SHARD),
        _with_static(lambda *, dim, **_: {"dim": dim + 1}),
    ),
    collective.ALL_TO_ALL: _with_static(lambda *, split, join, **_: {"split": split + 1, "join": join + 1}),
    convolution.CONV_KERNEL_GRAD: _conv_kernel_grad,
    layout.RESHAPE: _reshape,
    layout.BROADCAST_TO: _broadcast_to,
    layout.PERMUTE: _with_static(lambda *, axes: {"axes": (0, *[axis + 1 for axis in axes])}),
    slicing.PAD: _with_static(
        lambda *, padding, interior, **_: {"padding": ((0, 0), *padding), "interior": (0, *interior)}
    ),
    matmul.MATMUL: _matmul,
    matmul.LINEAR: _linear,
    attention.SCALED_DOT_PRODUCT_ATTENTION: _attention,
    indexing.GATHER_ROWS: _gather_rows,
    indexing.SCATTER_ADD_ROWS: _scatter_add_rows,
    VARY_LIKE: _vary_like,
    REMAT: batched_remat,
    SCAN: batched_scan,
    SWITCH: batched_switch,
    WHILE: batched_while,
}
