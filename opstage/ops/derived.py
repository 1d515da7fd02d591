"""Ops that are programs over other ops: functions with `ops` as their first argument."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING

from .activation import glu, prelu
from .adaptive_pooling import (
    adaptive_avg_pool,
    adaptive_max_pool,
    global_max_pool,
    instance_norm,
    local_response_norm,
    lp_pool,
)
from .advanced_indexing import gather_nd, index_add, masked_select, nonzero, put_along_axis, scatter_nd, take_along_axis
from .arrangement import (
    arange,
    chunk,
    diag,
    diagonal,
    eye,
    flip,
    linspace,
    masked_fill,
    meshgrid,
    moveaxis,
    pad,
    repeat_interleave,
    roll,
    swapaxes,
    take,
    tile,
    trace,
    tril,
    triu,
    unbind,
)
from .collective import all_mean, batch_mean, broadcast
from .ctc import ctc_loss
from .dims import Dim
from .errors import ShapeError
from .interpolation import affine_grid, grid_sample, resize
from .linalg import einsum, inverse
from .logic import nan_to_num
from .loss import binary_cross_entropy_with_logits, class_axis, cosine_similarity, huber, kl_div, weighted_cross_entropy
from .matmul import grouped_matmul
from .primitive import R
from .recurrent import bidirectional, gru, lstm, rnn
from .rule_helpers import full_like, read_int
from .sequence import bincount, searchsorted, segment_sum, sort, top_k, unique
from .static_arguments import Axes, plain
from .statistics import cummax, cummin, median, norm, quantile, segment_max, segment_min, std, var
from .types import DType, show_shape
from .windows import depth_to_space, fold, pixel_shuffle, pixel_unshuffle, space_to_depth, unfold

if TYPE_CHECKING:
    from .protocol import Ops

__all__ = [
    "accuracy",
    "adaptive_avg_pool",
    "adaptive_max_pool",
    "affine_grid",
    "all_mean",
    "arange",
    "batch_mean",
    "bidirectional",
    "binary_cross_entropy_with_logits",
    "bincount",
    "broadcast",
    "chunk",
    "correct_count",
    "cosine_similarity",
    "ctc_loss",
    "cummax",
    "cummin",
    "depth_to_space",
    "diag",
    "diagonal",
    "dropout",
    "einsum",
    "embedding",
    "eye",
    "flip",
    "fold",
    "gather_nd",
    "global_avg_pool",
    "global_max_pool",
    "glu",
    "grid_sample",
    "grouped_matmul",
    "gru",
    "huber",
    "index_add",
    "instance_norm",
    "inverse",
    "kl_div",
    "linspace",
    "local_response_norm",
    "logsumexp",
    "lp_pool",
    "lstm",
    "masked_fill",
    "masked_select",
    "median",
    "meshgrid",
    "moveaxis",
    "nan_to_num",
    "nonzero",
    "norm",
    "one_hot",
    "pad",
    "pixel_shuffle",
    "pixel_unshuffle",
    "prelu",
    "put_along_axis",
    "quantile",
    "repeat_interleave",
    "resize",
    "rnn",
    "roll",
    "scatter_nd",
    "searchsorted",
    "segment_max",
    "segment_min",
    "segment_sum",
    "sort",
    "space_to_depth",
    "std",
    "swapaxes",
    "take",
    "take_along_axis",
    "tile",
    "top_k",
    "trace",
    "tril",
    "triu",
    "unbind",
    "unfold",
    "unique",
    "var",
    "weighted_cross_entropy",
]
__dir__ = __all__.copy


def dropout(ops: Ops[R], x: R, p: float | Fraction, train: bool, *, seed: int | None = None) -> R:
    """Return x · mask/(1 - p) in training, where each element is dropped with probability p; otherwise x itself.

    Each call draws separately, and again in every step; p = 1 drops everything. PyTorch: torch.nn.functional.dropout.
    Source: Srivastava et al. 2014. Raises ShapeError for p outside [0, 1].

    Raises:
        ShapeError: an invalid argument.
    """
    p = plain(p)
    if not isinstance(p, int | float | Fraction) or not 0 <= p <= 1:
        raise ShapeError(
            f"p must be a probability from 0 to 1 but is {p!r}", op="dropout", region=ops.cursor.region.name
        )
    if not train or p == 0:
        return x
    keep = 1 - p
    mask = ops.bernoulli_mask(ops.full(shape=(), value=keep, dtype=x.dtype), shape=x.shape, seed=seed, like=x)
    return ops.mul(x, ops.scale(mask, c=1 / keep if keep else 0))


def one_hot(ops: Ops[R], labels: R, /, *, classes: Dim, dtype: str | DType | None = None) -> R:
    """Return 1 at each label's class, else 0, for labels of any shape: (*labels, classes), in the program's dtype by
    default.

    A label outside [0, classes) gives zeros. PyTorch: torch.nn.functional.one_hot.

    Raises:
        DtypeError: an operand of another dtype.
        ShapeError: no such shape.
        UsageError: no such dtype.
    """
    axis = len(labels.shape)
    shape = (*labels.shape, classes)
    spread = ops.broadcast_to(ops.unsqueeze(labels, axis=axis), shape=shape)
    own = ops.equal(spread, ops.iota(shape=shape, axis=axis, dtype=labels.dtype))
    return ops.cast(own, dtype=ops.dtype if dtype is None else dtype)


def embedding(ops: Ops[R], table: R, idx: R, /, *, mode: str = "raise") -> R:
    """Return rows of `table` (n, d) at integer indices of any shape: (*idx, d). PyTorch: torch.nn.functional.embedding.

    Raises:
        DtypeError: idx not an integer tensor.
        RangeError: an index out of range, when it runs.
        ShapeError: x has no first axis; an invalid argument.
    """
    return ops.gather_rows(table, idx, mode=mode)


def logsumexp(ops: Ops[R], x: R, /, *, axis: Axes = None, keepdims: bool = False) -> R:
    """Return log Σ e^x over axes, without overflow; -inf where all elements are. PyTorch: torch.logsumexp.

    Raises:
        DtypeError: x a mask; a number that the dtype does not hold.
        ShapeError: no such axis; an axis is empty.
    """
    # The shift cancels in the result, so it is not differentiated; an infinite shift would give inf - inf.
    peak = ops.detach(ops.reduce_max(x, axis=axis, keepdims=True))
    finite = ops.less(ops.abs(peak), ops.full(shape=peak.shape, value=math.inf, dtype=x.dtype))
    shift = ops.select(finite, peak, ops.full(shape=peak.shape, value=0.0, dtype=x.dtype))
    shifted = ops.sub(x, ops.broadcast_to(shift, shape=x.shape))
    out = ops.add(shift, ops.log(ops.reduce_sum(ops.exp(shifted), axis=axis, keepdims=True)))
    return out if keepdims else ops.squeeze(out, axis=axis)


def global_avg_pool(ops: Ops[R], x: R, /, *, spatial: int = 2) -> R:
    """Return the mean over the last `spatial` axes: (C, *S) -> (C), (N, C, *S) -> (N, C).

    PyTorch: torch.nn.functional.adaptive_avg_pool2d(x, 1), flattened. Raises ShapeError for any other rank of x.

    Raises:
        DtypeError: x not a float tensor.
        ShapeError: an invalid argument; an axis is empty; x of another shape.
    """
    rank, spatial = len(x.shape), read_int(ops, "global_avg_pool", "spatial", spatial)
    if rank not in (spatial + 1, spatial + 2):
        raise ShapeError(
            f"x must be (C, *S) or (N, C, *S) with {spatial} spatial axes, so of rank {spatial + 1} or {spatial + 2}, "
            f"but is {show_shape(x.shape)}; pass spatial= for another number of them",
            op="global_avg_pool",
            region=ops.cursor.region.name,
        )
    return ops.reduce_mean(x, axis=tuple(range(rank - spatial, rank)))


def correct_count(ops: Ops[R], logits: R, labels: R, /, *, ignore_index: int = -100) -> R:
    """Return the number of positions whose largest logit is at their label, as a scalar of logits' dtype, without
    ignored positions.

    Logits are (C), (N, C) or (N, C, *D), and labels the same without C, as in cross_entropy. Not differentiable.

    Raises:
        DtypeError: x a mask; a number that the dtype does not hold.
        ShapeError: shapes differ; no such axis; an invalid argument; an axis is empty.
    """
    predicted = ops.cast(ops.argmax(logits, axis=class_axis(len(logits.shape))), dtype=labels.dtype)
    correct = ops.logical_and(ops.equal(predicted, labels), counted(ops, labels, ignore_index))
    return ops.sum(ops.cast(correct, dtype=logits.dtype))


def accuracy(ops: Ops[R], logits: R, labels: R, /, *, ignore_index: int = -100) -> R:
    """Return `correct_count` divided by the number of positions that are not ignored; nan if all are ignored.

    Raises:
        DtypeError: x not a float tensor; x a mask; a number that the dtype does not hold.
        ShapeError: shapes differ; no such axis; an invalid argument; an axis is empty.
    """
    count = ops.sum(ops.cast(counted(ops, labels, ignore_index), dtype=logits.dtype))
    return ops.div(correct_count(ops, logits, labels, ignore_index=ignore_index), count)


def counted(ops: Ops[R], labels: R, ignore_index: int = -100) -> R:
    """Return the mask of the labels that count: all but those that are `ignore_index`."""
    ignored = ops.equal(labels, full_like(ops, labels, ignore_index))
    return ops.logical_not(ignored)
