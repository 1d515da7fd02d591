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


def _window(rank: int, stride: Any, padding: Any, dilation: Any, groups: int) -> dict[str, Any]:
    each = {"stride": stride, "padding": padding, "dilation": dilation}
    return {**{name: _each(given, rank) for name, given in each.items()}, "groups": groups}


@rule("convolution.default")
def _convolution(call: AtenCall[Any], x: Any, kernel: Any, bias: Any, *given: Any) -> Any:
    *sides, transposed, output_padding, groups = given
    if transposed:
        return _conv_transpose(call, x, kernel, bias, *sides[:2], output_padding, groups, sides[2])
    return _conv(call, x, kernel, bias, *sides, groups)


@rule("conv1d.default", "conv2d.default", "conv3d.default", "conv1d.padding", "conv2d.padding", "conv3d.padding")
def _conv(
    call: AtenCall[Any], x: Any, kernel: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int
) -> Any:
    rank, ref = len(kernel.shape) - 2, x.ref
    if isinstance(padding, str):
        gaps = _each(dilation, rank)
        totals = [gap * (k - 1) if padding == "same" else 0 for gap, k in zip(gaps, kernel.shape[2:])]
        pairs = [(total // 2, total - total // 2) for total in totals]
        padding = [a for a, _ in pairs]
        if any(a != b for a, b in pairs):
            ref, padding = pad(call.ops, ref, padding=[*[(0, 0)] * (len(x.shape) - rank), *pairs]), 0
    window = _window(rank, stride, padding, dilation, groups)
    return call.give(call.ops.conv(kernel.ref, None if bias is None else bias.ref, ref, **window))


@rule("conv_transpose1d.default", "conv_transpose2d.input", "conv_transpose3d.input")
def _conv_transpose(call: AtenCall[Any], x: Any, kernel: Any, bias: Any, *given: Any) -> Any:
    stride, padding, output_padding, groups, dilation = given
    rank = len(kernel.shape) - 2
    window = {**_window(rank, stride, padding, dilation, groups), "output_padding": _each(output_padding, rank)}
    return call.give(call.ops.conv_transpose(kernel.ref, None if bias is None else bias.ref, x.ref, **window))


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
def _avg_pool(call: AtenCall[Any], x: Any, kernel: Any, stride: Any, padding: Any, *given: Any) -> Any:
    ceil_mode, counted, divisor = (*given, None)[:3]
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


def _target(call: AtenCall[Any], size: Any, scales: tuple[Any, ...]) -> dict[str, Any]:
    """Return the scales if given, since they determine the coordinates, else the sizes."""
    if call.node.op.endswith(".vec"):
        return {"scale": tuple(scales[0])} if scales[0] is not None and size is None else {"size": tuple(size)}
    known = tuple(scale for scale in scales if scale is not None)
    return {"scale": known} if known and len(known) == len(size) else {"size": tuple(size)}


def _forms(*names: str) -> list[str]:
    return [f"{name}.{form}" for name in names for form in ("vec", "default")]


@rule(*_forms(*[f"{name}{n}d" for n in (1, 2, 3) for name in ("upsample_nearest", "_upsample_nearest_exact")]))
def _nearest(call: AtenCall[Any], x: Any, size: Any, *scales: Any) -> Any:
    exact, target = "exact" in call.name, _target(call, size, scales)
    coordinates, rounding = ("half_pixel", "round_prefer_ceil") if exact else ("asymmetric", "floor")
    return call.give(resize(call.ops, x.ref, **target, mode="nearest", coordinates=coordinates, rounding=rounding))


_INTERPOLATED = {"linear1d": "linear", "bilinear2d": "linear", "trilinear3d": "linear", "bicubic2d": "cubic"}
_FILTERED = {"_upsample_bilinear2d_aa": "linear", "_upsample_bicubic2d_aa": "cubic"}


@rule(*_forms(*[f"upsample_{kind}" for kind in _INTERPOLATED], *_FILTERED))
def _interpolated(call: AtenCall[Any], x: Any, size: Any, align_corners: bool, *scales: Any) -> Any:
    name, target = call.name.removeprefix("aten."), _target(call, size, scales)
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
