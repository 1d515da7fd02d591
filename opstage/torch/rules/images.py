"""Resize and sample images."""

from __future__ import annotations

from typing import Any

from ...ops.errors import UnsupportedError
from ...ops.functions.grids import affine_grid, grid_sample
from ...ops.functions.resample import resize
from ..call import AtenCall, rule


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
    *[f"upsample_nearest{n}d.default" for n in (1, 2, 3)],
    *[f"_upsample_nearest_exact{n}d.default" for n in (1, 2, 3)],
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
