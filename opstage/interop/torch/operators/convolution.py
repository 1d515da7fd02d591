"""Convolutions, pools, and the resizing and sampling of images."""

from __future__ import annotations

from typing import Any

from ....ops.arrangement import pad
from ....ops.derived import adaptive_avg_pool, adaptive_max_pool
from ....ops.errors import UnsupportedError
from ....ops.interpolation import affine_grid, grid_sample, resize
from ....ops.windows import fold, unfold
from ...values import Windows, max_pool, maxima, overhang, window_means
from ..call import AtenCall, rule

Numbers = tuple[int, ...]


def _each(given: Any, rank: int, default: Any = None) -> Numbers:
    """Return a number per axis, from one for all or from several."""
    if given is None or (isinstance(given, list) and not given):
        given = default
    listed = list(given) if isinstance(given, (list, tuple)) else [given]
    return tuple(int(each) for each in (listed * rank if len(listed) == 1 else listed))


@rule("convolution.default")
def _convolution(
    call: AtenCall[Any],
    x: Any,
    kernel: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
) -> Any:
    rank = len(kernel.shape) - 2
    static: dict[str, Any] = {
        "stride": _each(stride, rank),
        "padding": _each(padding, rank),
        "dilation": _each(dilation, rank),
        "groups": groups,
    }
    refs = (kernel.ref, None if bias is None else bias.ref, x.ref)
    if transposed:
        return call.give(call.ops.conv_transpose(*refs, **static, output_padding=_each(output_padding, rank)))
    return call.give(call.ops.conv(*refs, **static))


@rule("conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def _conv(
    call: AtenCall[Any], x: Any, kernel: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    rank = len(kernel.shape) - 2
    gaps = _each(dilation, rank)
    ref = x.ref
    if isinstance(padding, str):
        totals = [gap * (k - 1) if padding == "same" else 0 for gap, k in zip(gaps, kernel.shape[2:])]
        pairs = [(total // 2, total - total // 2) for total in totals]
        if any(a != b for a, b in pairs):
            ref = pad(call.ops, ref, padding=[*[(0, 0)] * (len(x.shape) - rank), *pairs])
            padding = 0
        else:
            padding = [a for a, _ in pairs]
    static: dict[str, Any] = {"stride": _each(stride, rank), "padding": _each(padding, rank), "dilation": gaps}
    return call.give(call.ops.conv(kernel.ref, None if bias is None else bias.ref, ref, **static, groups=groups))


@rule("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def _conv_transpose(
    call: AtenCall[Any],
    x: Any,
    kernel: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    output_padding: Any,
    groups: int,
    dilation: Any,
) -> Any:
    return _convolution(call, x, kernel, bias, stride, padding, dilation, True, output_padding, groups)


# Pools ----------------------------------------------------------------------------------------------------------------


def _behind(x: Any, sizes: Windows, padding: Numbers, ceil_mode: bool) -> list[tuple[int, int]]:
    rank = len(padding)
    return overhang(x.shape[-rank:], sizes, [(p, p) for p in padding]) if ceil_mode else [(0, 0)] * rank


@rule(*[f"max_pool{n}d.default" for n in (1, 2, 3)], *[f"max_pool{n}d_with_indices.default" for n in (2, 3)])
def _max_pool(
    call: AtenCall[Any], x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> Any:
    ops, rank = call.ops, int(call.name.split("max_pool")[1][0])
    cells = _each(kernel, rank)
    steps, sides, gaps = _each(stride, rank, cells), _each(padding, rank), _each(dilation, rank)
    behind = _behind(x, (cells, steps, gaps), sides, ceil_mode)
    whole = [(p, p + b) for p, (_, b) in zip(sides, behind)]
    if "with_indices" in call.name and 1 in call.node.used:
        return [call.give(each, i) for i, each in enumerate(maxima(ops, x.ref, (cells, steps, gaps), whole))]
    y = max_pool(ops, x.ref, (cells, steps, gaps), whole)
    return [call.give(y, 0), None] if "with_indices" in call.name else call.give(y)


@rule(*[f"avg_pool{n}d.default" for n in (1, 2, 3)])
def _avg_pool(
    call: AtenCall[Any],
    x: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil_mode: bool,
    counted: bool,
    divisor: Any = None,
) -> Any:
    rank = int(call.name.split("avg_pool")[1][0])
    cells = _each(kernel, rank)
    steps, sides = _each(stride, rank, cells), _each(padding, rank)
    sizes = (cells, steps, (1,) * rank)
    behind = _behind(x, sizes, sides, ceil_mode)
    pairs = [(p, p) for p in sides]
    return call.give(window_means(call.ops, x.ref, sizes, pairs, behind, counted=counted, divisor=divisor))


@rule(*[f"{kind}adaptive_avg_pool{n}d.default" for n in (1, 2, 3) for kind in ("", "_")])
def _adaptive_avg_pool(call: AtenCall[Any], x: Any, size: Any) -> Any:
    return call.give(adaptive_avg_pool(call.ops, x.ref, size=tuple(size)))


@rule(*[f"adaptive_max_pool{n}d.default" for n in (1, 2, 3)])
def _adaptive_max_pool(call: AtenCall[Any], x: Any, size: Any) -> Any:
    if 1 in call.node.used:
        raise UnsupportedError("its second result, where the maxima are, is not made here")
    return [call.give(adaptive_max_pool(call.ops, x.ref, size=tuple(size)), 0), None]


@rule("im2col.default")
def _im2col(call: AtenCall[Any], x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    windows: Any = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation)}
    return call.give(unfold(call.ops, x.ref, kernel=tuple(kernel), **windows))


@rule("col2im.default")
def _col2im(call: AtenCall[Any], x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    windows: Any = {"stride": tuple(stride), "padding": tuple(padding), "dilation": tuple(dilation)}
    return call.give(fold(call.ops, x.ref, size=tuple(size), kernel=tuple(kernel), **windows))


# Images ---------------------------------------------------------------------------------------------------------------


def _size_or_scale(size: Any, scales: Any) -> dict[str, Any]:
    if scales is not None and size is None:
        return {"scale": tuple(scales)}
    return {"size": tuple(size)}


def _given(scales: tuple[Any, ...], size: Any) -> dict[str, Any]:
    """Return the scales if given, since they determine the coordinates, else the sizes."""
    known = [scale for scale in scales if scale is not None]
    return {"scale": tuple(known)} if known and len(known) == len(size) else {"size": tuple(size)}


@rule(*[f"upsample_nearest{n}d.vec" for n in (1, 2, 3)], *[f"_upsample_nearest_exact{n}d.vec" for n in (1, 2, 3)])
def _nearest_of(call: AtenCall[Any], x: Any, size: Any, scales: Any) -> Any:
    return _nearest_result(call, x, _size_or_scale(size, scales))


@rule(
    *[f"upsample_nearest{n}d.default" for n in (1, 2, 3)], *[f"_upsample_nearest_exact{n}d.default" for n in (1, 2, 3)]
)
def _nearest(call: AtenCall[Any], x: Any, size: Any, *scales: Any) -> Any:
    return _nearest_result(call, x, _given(scales, size))


def _nearest_result(call: AtenCall[Any], x: Any, target: dict[str, Any]) -> Any:
    exact = "exact" in call.name
    coordinates, rounding = ("half_pixel", "round_prefer_ceil") if exact else ("asymmetric", "floor")
    y = resize(call.ops, x.ref, **target, mode="nearest", coordinates=coordinates, rounding=rounding)
    return call.give(y)


_INTERPOLATED = {"linear1d": "linear", "bilinear2d": "linear", "trilinear3d": "linear", "bicubic2d": "cubic"}
_FILTERED = {"_upsample_bilinear2d_aa": "linear", "_upsample_bicubic2d_aa": "cubic"}


@rule(*[f"upsample_{kind}.vec" for kind in _INTERPOLATED], *[f"{kind}.vec" for kind in _FILTERED])
def _interpolated_of(call: AtenCall[Any], x: Any, size: Any, align_corners: bool, scales: Any) -> Any:
    return _interpolated_result(call, x, align_corners, _size_or_scale(size, scales))


@rule(*[f"upsample_{kind}.default" for kind in _INTERPOLATED], *[f"{kind}.default" for kind in _FILTERED])
def _interpolated(call: AtenCall[Any], x: Any, size: Any, align_corners: bool, *scales: Any) -> Any:
    return _interpolated_result(call, x, align_corners, _given(scales, size))


def _interpolated_result(call: AtenCall[Any], x: Any, align_corners: bool, target: dict[str, Any]) -> Any:
    name = call.name.removeprefix("aten.")
    filtered = name in _FILTERED
    mode = _FILTERED[name] if filtered else _INTERPOLATED[name.removeprefix("upsample_")]
    coordinates = "align_corners" if align_corners else "half_pixel"
    if filtered and align_corners:
        raise UnsupportedError("align_corners with antialias is not known")
    return call.give(resize(call.ops, x.ref, **target, mode=mode, coordinates=coordinates, antialias=filtered))


_MODES = ("linear", "nearest", "cubic")
_PADDINGS = ("zeros", "border", "reflection")


@rule("grid_sampler_2d.default", "grid_sampler_3d.default", "grid_sampler.default")
def _grid_sample(call: AtenCall[Any], x: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    static: Any = {"mode": _MODES[mode], "padding": _PADDINGS[padding], "align_corners": bool(align_corners)}
    return call.give(grid_sample(call.ops, x.ref, grid.ref, **static))


@rule("affine_grid_generator.default")
def _affine_grid(call: AtenCall[Any], theta: Any, size: Any, align_corners: bool) -> Any:
    return call.give(affine_grid(call.ops, theta.ref, size=tuple(size), align_corners=align_corners))
