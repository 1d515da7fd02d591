# mypy: disable-error-code=empty-body
"""Normalisations: zero mean and unit variance over some axes, then a scale gamma and a shift beta.

All are composites. Their statistics are residuals for a fused `*_grad`, which may compute all cotangents in one pass
and whose own derivatives come from its decomposition. Variances are two-pass: the mean of (x - mean)².
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .dims import Dim, exact_div, prod, ratio
from .errors import ShapeError
from .method import Calls
from .primitive import Context, Primitive, R, Row, Some, Types
from .rule_helpers import same_type
from .standardization import (
    affine_cotangents,
    affine_map,
    affine_vjp,
    along,
    flops_per_element,
    other_axes,
    pull,
    reciprocal_deviation,
    require_affine,
    require_axes,
    require_eps,
    require_some,
    require_two,
    require_type,
    standardize,
    standardized,
    unpack,
    values_per_channel,
)
from .static_arguments import Axis
from .types import Shape, TensorType, require_float, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# Layer normalisation -------------------------------------------------------------------------------------------------


def _statistic_shape(x: TensorType) -> Shape:
    return (*x.shape[:-1], 1)


def _layer_norm_shape(x: TensorType, *affine: TensorType, has_gamma: bool, has_beta: bool, eps: Any) -> Types:
    require_eps(eps)
    require_axes(x, 1, "the last of which is normalised")
    require_some(x.shape[-1], x, "the last axis")
    require_affine(x, affine, has_gamma, len(x.shape) - 1)
    statistic = TensorType(_statistic_shape(x), x.dtype)
    return x, statistic, statistic


def _layer_norm_decomposition(ops: Ops[R], x: R, /, *affine: R, has_gamma: bool, has_beta: bool, eps: float) -> Row[R]:
    gamma, beta, _ = unpack(affine, has_gamma, has_beta)
    last = len(x.shape) - 1
    y, mean, _, rstd = standardize(ops, x, (last,), eps)
    return affine_map(ops, y, gamma, beta, last), mean, rstd


LAYER_NORM = Primitive(
    shape=_layer_norm_shape,
    residuals=("mean", "rstd"),
    vjp=affine_vjp(lambda ops, *refs: ops.layer_norm_grad(*refs), axis=-1),
    saves={"x": ("x", "gamma"), "gamma": ("x",), "mean": ("x", "gamma"), "rstd": ("x", "gamma")},
    decomposition=_layer_norm_decomposition,
    expandable=True,
    flops=flops_per_element(6),
)


def _layer_norm_grad_shape(x: TensorType, *rest: TensorType, has_gamma: bool) -> Types:
    require_axes(x, 1, "the last of which was normalised")
    require_some(x.shape[-1], x, "the last axis")
    *gamma, mean, rstd, g = rest
    require_affine(x, tuple(gamma), has_gamma, len(x.shape) - 1)
    require_type(mean, "mean", _statistic_shape(x), x, "one for each row of x")
    require_type(rstd, "rstd", _statistic_shape(x), x, "one for each row of x")
    vector = TensorType((x.shape[-1],), x.dtype)
    return same_type(x, g, "x", "g"), vector, vector


def _layer_norm_grad_decomposition(ops: Ops[R], x: R, /, *rest: R, has_gamma: bool) -> Row[R]:
    gamma, _, others = unpack(rest, has_gamma)
    mean, rstd, g = others
    last = len(x.shape) - 1
    rows = other_axes(len(x.shape), last)
    y = standardized(ops, x, mean, rstd)
    dx = pull(ops, y, rstd, affine_map(ops, g, gamma, None, last), (last,))
    return dx, ops.reduce_sum(ops.mul(g, y), axis=rows), ops.reduce_sum(g, axis=rows)


LAYER_NORM_GRAD = Primitive(
    outputs=("dx", "dgamma", "dbeta"),
    shape=_layer_norm_grad_shape,
    decomposition=_layer_norm_grad_decomposition,
    flops=flops_per_element(12),
)

# Root-mean-square normalisation --------------------------------------------------------------------------------------


def _rms_norm_shape(x: TensorType, *gamma: TensorType, has_gamma: bool, eps: Any) -> Types:
    require_eps(eps)
    require_axes(x, 1, "the last of which is normalised")
    require_some(x.shape[-1], x, "the last axis")
    require_affine(x, gamma, has_gamma, len(x.shape) - 1)
    return x, TensorType(_statistic_shape(x), x.dtype)


def _rms_norm_decomposition(ops: Ops[R], x: R, /, *affine: R, has_gamma: bool, eps: float) -> Row[R]:
    gamma, _, _ = unpack(affine, has_gamma)
    last = len(x.shape) - 1
    rstd = reciprocal_deviation(ops, ops.reduce_mean(ops.mul(x, x), axis=last, keepdims=True), eps)
    return affine_map(ops, ops.mul(x, ops.broadcast_to(rstd, shape=x.shape)), gamma, None, last), rstd


def _rms_norm_vjp(ops: Ops[R], ctx: Context[R], cotangents: Row[R], /, *, has_gamma: bool, eps: float) -> Some[R]:
    (g, *_), (x, gamma, rstd) = cotangents, ctx.saved
    dx, dgamma = ops.rms_norm_grad(x, gamma, rstd, g)
    return affine_cotangents(dx, dgamma, None, ctx, has_gamma, False)


RMS_NORM = Primitive(
    shape=_rms_norm_shape,
    residuals=("rstd",),
    vjp=_rms_norm_vjp,
    saves={"x": ("x", "gamma"), "gamma": ("x",), "rstd": ("x", "gamma")},
    decomposition=_rms_norm_decomposition,
    expandable=True,
    flops=flops_per_element(3),
)


def _rms_norm_grad_shape(x: TensorType, *rest: TensorType, has_gamma: bool) -> Types:
    require_axes(x, 1, "the last of which was normalised")
    require_some(x.shape[-1], x, "the last axis")
    *gamma, rstd, g = rest
    require_affine(x, tuple(gamma), has_gamma, len(x.shape) - 1)
    require_type(rstd, "rstd", _statistic_shape(x), x, "one for each row of x")
    return same_type(x, g, "x", "g"), TensorType((x.shape[-1],), x.dtype)


def _rms_norm_grad_decomposition(ops: Ops[R], x: R, /, *rest: R, has_gamma: bool) -> Row[R]:
    gamma, _, others = unpack(rest, has_gamma)
    rstd, g = others
    last = len(x.shape) - 1
    y = ops.mul(x, ops.broadcast_to(rstd, shape=x.shape))
    dx = pull(ops, y, rstd, affine_map(ops, g, gamma, None, last), (last,), centred=False)
    return dx, ops.reduce_sum(ops.mul(g, y), axis=other_axes(len(x.shape), last))


RMS_NORM_GRAD = Primitive(
    outputs=("dx", "dgamma"),
    shape=_rms_norm_grad_shape,
    decomposition=_rms_norm_grad_decomposition,
    flops=flops_per_element(8),
)

# Group normalisation -------------------------------------------------------------------------------------------------


def _group_size(x: TensorType, groups: Any) -> Dim:
    """Return the number of elements that one group normalises over."""
    if isinstance(groups, bool) or not isinstance(groups, int) or groups < 1:
        raise ShapeError(f"groups must be an int that is at least 1 but is {groups!r}")
    channels = exact_div(
        x.shape[1], groups, lambda: f"groups={groups} must divide the channels, axis 1 of x {show_shape(x.shape)}"
    )
    return channels * prod(x.shape[2:])


def _require_groups(x: TensorType, groups: Any) -> TensorType:
    """Check x against `groups`; return the type of a group's statistic."""
    require_axes(x, 2, "(N, C, *spatial)")
    require_some(_group_size(x, groups), x, "a group")
    return TensorType((x.shape[0], groups), x.dtype)


def _group_norm_shape(
    x: TensorType, *affine: TensorType, has_gamma: bool, has_beta: bool, groups: Any, eps: Any
) -> Types:
    require_eps(eps)
    statistic = _require_groups(x, groups)
    require_affine(x, affine, has_gamma, 1)
    return x, statistic, statistic


def _grouped(ops: Ops[R], x: R, groups: int) -> R:
    """Reshape (N, C, *S) to (N, groups, elements of a group)."""
    return ops.reshape(x, shape=(x.shape[0], groups, _group_size(TensorType(x.shape, x.dtype), groups)))


def _group_norm_decomposition(
    ops: Ops[R], x: R, /, *affine: R, has_gamma: bool, has_beta: bool, groups: int, eps: float
) -> Row[R]:
    gamma, beta, _ = unpack(affine, has_gamma, has_beta)
    y, mean, _, rstd = standardize(ops, _grouped(ops, x, groups), (2,), eps)
    statistics = (ops.reshape(s, shape=(x.shape[0], groups)) for s in (mean, rstd))
    return affine_map(ops, ops.reshape(y, shape=x.shape), gamma, beta, 1), *statistics


GROUP_NORM = Primitive(
    shape=_group_norm_shape,
    residuals=("mean", "rstd"),
    vjp=affine_vjp(lambda ops, *refs, groups: ops.group_norm_grad(*refs, groups=groups), axis=1),
    saves={"x": ("x", "gamma"), "gamma": ("x",), "mean": ("x", "gamma"), "rstd": ("x", "gamma")},
    decomposition=_group_norm_decomposition,
    expandable=True,
    flops=flops_per_element(6),
)


def _group_norm_grad_shape(x: TensorType, *rest: TensorType, has_gamma: bool, groups: Any) -> Types:
    statistic = _require_groups(x, groups)
    *gamma, mean, rstd, g = rest
    require_affine(x, tuple(gamma), has_gamma, 1)
    require_type(mean, "mean", statistic.shape, x, "one for each group")
    require_type(rstd, "rstd", statistic.shape, x, "one for each group")
    vector = TensorType((x.shape[1],), x.dtype)
    return same_type(x, g, "x", "g"), vector, vector


def _group_norm_grad_decomposition(ops: Ops[R], x: R, /, *rest: R, has_gamma: bool, groups: int) -> Row[R]:
    gamma, _, others = unpack(rest, has_gamma)
    mean, rstd, g = others
    mean, rstd = (ops.reshape(s, shape=(x.shape[0], groups, 1)) for s in (mean, rstd))
    y = standardized(ops, _grouped(ops, x, groups), mean, rstd)
    h = _grouped(ops, affine_map(ops, g, gamma, None, 1), groups)
    dx = ops.reshape(pull(ops, y, rstd, h, (2,)), shape=x.shape)
    axes = other_axes(len(x.shape), 1)
    dgamma = ops.reduce_sum(ops.mul(g, ops.reshape(y, shape=x.shape)), axis=axes)
    return dx, dgamma, ops.reduce_sum(g, axis=axes)


GROUP_NORM_GRAD = Primitive(
    outputs=("dx", "dgamma", "dbeta"),
    shape=_group_norm_grad_shape,
    decomposition=_group_norm_grad_decomposition,
    flops=flops_per_element(12),
)

# Batch normalisation -------------------------------------------------------------------------------------------------


def _require_channel(x: TensorType, channel_axis: int, affine: Types, has_gamma: bool) -> TensorType:
    """Check x, gamma and beta; return the type of a channel's statistic."""
    require_float(x, "x")
    require_affine(x, affine, has_gamma, channel_axis)
    return TensorType((x.shape[channel_axis],), x.dtype)


def _batch_norm_shape(
    x: TensorType, *affine: TensorType, has_gamma: bool, has_beta: bool, channel_axis: int, eps: Any
) -> Types:
    require_eps(eps)
    statistic = _require_channel(x, channel_axis, affine, has_gamma)
    require_two(x, channel_axis)
    return x, statistic, statistic, statistic


def _batch_norm_decomposition(
    ops: Ops[R], x: R, /, *affine: R, has_gamma: bool, has_beta: bool, channel_axis: int, eps: float
) -> Row[R]:
    return batch_norm_of_ranks(
        ops, x, *affine, has_gamma=has_gamma, has_beta=has_beta, channel_axis=channel_axis, eps=eps
    )


def batch_norm_of_ranks(
    ops: Ops[R],
    x: R,
    /,
    *affine: R,
    has_gamma: bool,
    has_beta: bool,
    channel_axis: int,
    eps: float,
    whole: Callable[[R], R] = lambda mean: mean,
    ranks: Dim = 1,
) -> Row[R]:
    """Return batch_norm of a batch distributed over `ranks` ranks: `whole` turns a rank's mean into the mean over all
    ranks."""
    gamma, beta, _ = unpack(affine, has_gamma, has_beta)
    y, *statistics = standardize(ops, x, other_axes(len(x.shape), channel_axis), eps, whole)
    mean, variance, rstd = (ops.reshape(s, shape=(x.shape[channel_axis],)) for s in statistics)
    n = values_per_channel(x.shape, channel_axis) * ranks
    return affine_map(ops, y, gamma, beta, channel_axis), mean, ops.scale(variance, c=ratio(n, n - 1)), rstd


BATCH_NORM = Primitive(
    outputs=("y", "mean", "variance"),
    shape=_batch_norm_shape,
    residuals=("rstd",),
    vjp=affine_vjp(lambda ops, *refs, channel_axis: ops.batch_norm_grad(*refs, channel_axis=channel_axis)),
    saves={"x": ("x", "gamma"), "gamma": ("x",), "mean": ("x", "gamma"), "rstd": ("x", "gamma")},
    decomposition=_batch_norm_decomposition,
    expandable=True,
    flops=flops_per_element(6),
)


def _batch_norm_grad_shape(x: TensorType, *rest: TensorType, has_gamma: bool, channel_axis: int) -> Types:
    *gamma, mean, rstd, g, g_mean, g_variance = rest
    statistic = _require_channel(x, channel_axis, tuple(gamma), has_gamma)
    require_two(x, channel_axis)
    named = {"mean": mean, "rstd": rstd, "g_mean": g_mean, "g_variance": g_variance}
    for name, v in named.items():
        require_type(v, name, statistic.shape, x, "one for each channel")
    return same_type(x, g, "x", "g"), statistic, statistic


def _batch_norm_grad_decomposition(ops: Ops[R], x: R, /, *rest: R, has_gamma: bool, channel_axis: int) -> Row[R]:
    gamma, _, others = unpack(rest, has_gamma)
    mean, rstd, g, g_mean, g_variance = others
    mean, rstd, g_mean, g_variance = (along(ops, v, x.shape, channel_axis) for v in (mean, rstd, g_mean, g_variance))
    axes = other_axes(len(x.shape), channel_axis)
    n = values_per_channel(x.shape, channel_axis)
    centred = ops.sub(x, mean)
    y = ops.mul(centred, rstd)
    through_y = pull(ops, y, rstd, affine_map(ops, g, gamma, None, channel_axis), axes)
    through_mean = ops.scale(g_mean, c=ratio(1, n))
    through_variance = ops.scale(ops.mul(centred, g_variance), c=ratio(2, n - 1))
    dx = ops.add(through_y, ops.add(through_mean, through_variance))
    return dx, ops.reduce_sum(ops.mul(g, y), axis=axes), ops.reduce_sum(g, axis=axes)


BATCH_NORM_GRAD = Primitive(
    outputs=("dx", "dgamma", "dbeta"),
    shape=_batch_norm_grad_shape,
    decomposition=_batch_norm_grad_decomposition,
    flops=flops_per_element(15),
)


def _batch_norm_eval_shape(
    x: TensorType, *rest: TensorType, has_gamma: bool, has_beta: bool, channel_axis: int, eps: Any
) -> Types:
    require_eps(eps)
    *affine, mean, variance = rest
    statistic = _require_channel(x, channel_axis, tuple(affine), has_gamma)
    require_type(mean, "mean", statistic.shape, x, "one for each channel")
    require_type(variance, "variance", statistic.shape, x, "one for each channel")
    return (x,)


def _batch_norm_eval_decomposition(
    ops: Ops[R], x: R, /, *rest: R, has_gamma: bool, has_beta: bool, channel_axis: int, eps: float
) -> Row[R]:
    gamma, beta, others = unpack(rest, has_gamma, has_beta)
    mean, variance = others
    slope = reciprocal_deviation(ops, variance, eps)
    if gamma is not None:
        slope = ops.mul(slope, gamma)
    centred = ops.sub(x, along(ops, mean, x.shape, channel_axis))
    return (affine_map(ops, centred, slope, beta, channel_axis),)


BATCH_NORM_EVAL = Primitive(
    shape=_batch_norm_eval_shape, decomposition=_batch_norm_eval_decomposition, flops=flops_per_element(2)
)


# The methods of Ops ------------------------------------------------------------------------------------------


class NormalizationOps(Calls[R]):
    __slots__ = ()

    @LAYER_NORM.method
    def layer_norm(self, x: R, gamma: R | None, beta: R | None, /, *, eps: float = 1e-5) -> R:
        """Return (x - mean)/√(var + eps) · gamma + beta over the last axis. PyTorch: torch.nn.functional.layer_norm.

        x (..., d), biased variance; gamma and beta (d,) (Ba et al. 2016).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: an invalid argument; an axis is empty; x, gamma, beta of another shape.
        """

    @RMS_NORM.method
    def rms_norm(self, x: R, gamma: R | None, /, *, eps: float = 1e-5) -> R:
        """Return x/√(mean(x²) + eps) · gamma over the last axis. PyTorch: torch.nn.functional.rms_norm.

        x (..., d); gamma (d,) (Zhang & Sennrich 2019).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: an invalid argument; an axis is empty; x, gamma of another shape.
        """

    @GROUP_NORM.method
    def group_norm(self, x: R, gamma: R | None, beta: R | None, /, *, groups: int, eps: float = 1e-5) -> R:
        """Normalise over groups of channels of x (N, C, *S). PyTorch: torch.nn.functional.group_norm.

        Each of `groups` groups of C/groups channels is normalised over its channels and S; gamma and beta (C,) (Wu & He
        2018).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: groups do not divide the channels; an invalid argument; an axis is empty; gamma, x, beta of
                another shape.
        """

    @BATCH_NORM.method
    def batch_norm(
        self, x: R, gamma: R | None, beta: R | None, /, *, channel_axis: Axis = 1, eps: float = 1e-5
    ) -> tuple[R, R, R]:
        """Normalise over the batch, for training: return y, batch mean, unbiased batch variance. PyTorch:
        torch.nn.functional.batch_norm.

        y = (x - mean)/√(biased variance + eps) · gamma + beta, with statistics (C,) over all axes except the channel;
        gamma and beta (C,) (Ioffe & Szegedy 2015). At least 2 values per channel.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: too few values for a variance; no such axis; an invalid argument; gamma, beta of another shape.
        """

    @BATCH_NORM_EVAL.method
    def batch_norm_eval(
        self,
        x: R,
        gamma: R | None,
        beta: R | None,
        mean: R,
        variance: R,
        /,
        *,
        channel_axis: Axis = 1,
        eps: float = 1e-5,
    ) -> R:
        """Normalise with running statistics, for evaluation. PyTorch: torch.nn.functional.batch_norm.

        (x - mean)/√(variance + eps) · gamma + beta with given statistics (C,), along the channel axis.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: no such axis; an invalid argument; gamma, beta, mean, variance of another shape.
        """

    @LAYER_NORM_GRAD.method
    def layer_norm_grad(self, x: R, gamma: R | None, mean: R, rstd: R, g: R, /) -> tuple[R, R, R]:
        """Return the cotangents of layer_norm's x, gamma, beta; mean and rstd (..., 1).

        With y = (x - mean)·rstd and h = g·gamma: rstd·(h - mean(h) - y·mean(h·y)), Σ g·y, Σ g.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; an axis is empty; mean, x, gamma, rstd of another shape.
        """

    @RMS_NORM_GRAD.method
    def rms_norm_grad(self, x: R, gamma: R | None, rstd: R, g: R, /) -> tuple[R, R]:
        """Return the cotangents of rms_norm's x, gamma; rstd (..., 1).

        With y = x·rstd and h = g·gamma: rstd·(h - y·mean(h·y)), Σ g·y.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: shapes differ; an axis is empty; rstd, x, gamma of another shape.
        """

    @GROUP_NORM_GRAD.method
    def group_norm_grad(self, x: R, gamma: R | None, mean: R, rstd: R, g: R, /, *, groups: int) -> tuple[R, R, R]:
        """Return the cotangents of group_norm's x, gamma, beta; mean and rstd (N, groups).

        The formulas are those of layer_norm_grad, with means over a group.

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: groups do not divide the channels; shapes differ; an invalid argument; an axis is empty; gamma,
                x, mean, rstd of another shape.
        """

    @BATCH_NORM_GRAD.method
    def batch_norm_grad(
        self, x: R, gamma: R | None, mean: R, rstd: R, g: R, g_mean: R, g_variance: R, /, *, channel_axis: Axis = 1
    ) -> tuple[R, R, R]:
        """Return the cotangents of batch_norm's x, gamma, beta, from those of y, mean and variance.

        dx is that of layer_norm_grad, with means over a channel's n values, + g_mean/n + 2·g_variance·(x - mean)/(n -
        1).

        Raises:
            DtypeError: x not a float tensor; dtypes differ.
            ShapeError: too few values for a variance; shapes differ; no such axis; gamma, mean, rstd, g_mean,
                g_variance of another shape.
        """
