"""Resize, sample and reshape images."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

import numpy as np

from ...operators.values import Value
from ...ops.errors import UnsupportedError
from ...ops.functions.grids import affine_grid, grid_sample
from ...ops.functions.patches import fold
from ...ops.functions.resample import resize
from ..call import NodeCall, rule

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic", "bicubic": "cubic"}


@rule("Resize", "Upsample", known=(1, 2, 3))
def _resize(call: NodeCall[Any]) -> Value:
    """Resize axes with a scale other than 1; version 10 and Upsample have only scales, as the second input."""
    ops, x = call.ops, call.x()
    old = call.node.op == "Upsample" or call.version < 11
    coordinates = "asymmetric" if old else call.attribute("coordinate_transformation_mode", "half_pixel")
    if coordinates == "tf_crop_and_resize":
        raise UnsupportedError("tf_crop_and_resize is not known")
    rank = len(x.shape)
    axes = [int(axis) % rank for axis in call.attribute("axes", range(rank))]
    at = 1 if old else 2
    scales = call.attribute("scales")
    if scales is None and call.has(at) and call.known(at, "scales").size:
        scales = call.known(at, "scales").ravel().tolist()
    sizes = call.ints(3, "sizes") if not old and call.has(3) and call.known(3, "sizes").size else None
    mode = _MODES[call.attribute("mode", "nearest")]
    if mode != "nearest" and call.dtype().kind != "f":
        raise UnsupportedError(f"integers are not resized by mode {mode}: runtimes round them in ways of their own")
    more: dict[str, Any] = {"mode": mode, "coordinates": coordinates}
    if mode == "nearest":
        more["rounding"] = "floor" if old else call.attribute("nearest_mode", "round_prefer_floor")
    if mode == "cubic":
        more["cubic"] = Fraction(str(call.attribute("cubic_coeff_a", -0.75)))
    if call.attribute("antialias", 0) and mode != "nearest":
        raise UnsupportedError("antialias is not known: ONNX weighs what lies beyond the ends in a way of its own")
    if call.attribute("exclude_outside", 0):
        more["exclude_outside"] = True
    if sizes is not None:
        sizes, scales = _kept_in_proportion(call, axes, sizes), None
        chosen = [i for i, axis in enumerate(axes) if sizes[i] is not x.shape[axis] and sizes[i] != x.shape[axis]]
        if not chosen:
            return call.give(x)
        _require_reasonable(sizes[i] for i in chosen)
        return call.give(resize(ops, x, size=[sizes[i] for i in chosen], axes=[axes[i] for i in chosen], **more))
    if scales is None:
        raise UnsupportedError("it says neither sizes nor scales")
    chosen = [i for i, scale in enumerate(scales) if scale != 1]
    if not chosen:
        return call.give(x)
    whole = all(isinstance(x.shape[axes[i]], int) for i in chosen)
    if coordinates == "align_corners" and not whole:
        raise UnsupportedError("align_corners by scales needs sizes that are known")
    if coordinates == "align_corners" and any(not float(scales[i] * x.shape[axes[i]]).is_integer() for i in chosen):
        raise UnsupportedError("align_corners by scales that give no whole sizes is read in two ways by runtimes")
    _require_reasonable(x.shape[axes[i]] * scales[i] for i in chosen if isinstance(x.shape[axes[i]], int))
    factors = [Fraction(float(np.float32(scales[i]))).limit_denominator(1 << 20) for i in chosen]
    return call.give(resize(ops, x, scale=factors, axes=[axes[i] for i in chosen], **more))


_MOST_ENTRIES = 1 << 13


def _require_reasonable(sizes: Iterable[Any]) -> None:
    """Raise UnsupportedError for unreasonable sizes: the position and weights of each entry are computed one by one."""
    for size in sizes:
        if isinstance(size, (int, float)) and not size <= _MOST_ENTRIES:
            raise UnsupportedError(f"an axis of {size:,} entries is asked for; at most {_MOST_ENTRIES:,} are resampled")


def _kept_in_proportion(call: NodeCall[Any], axes: list[int], sizes: Any) -> Any:
    """Return the sizes, or those of the smallest or largest single scale, as the node's policy asks."""
    policy = call.attribute("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return sizes
    shape = call.shape()
    if not all(isinstance(each, int) for each in (*sizes, *[shape[axis] for axis in axes])):
        raise UnsupportedError("with a policy on proportions every size must be known")
    known = [int(shape[axis]) for axis in axes]
    scales = [Fraction(int(size), n) for size, n in zip(sizes, known)]
    scale = min(scales) if policy == "not_larger" else max(scales)
    if any((scale * n).denominator != 1 for n in known):
        raise UnsupportedError("a policy on proportions that leaves rounded sizes is not known")
    return [int(scale * n) for n in known]


@rule("GridSample")
def _grid_sample(call: NodeCall[Any]) -> Value:
    mode = _MODES[call.attribute("mode", "linear")]
    border = call.attribute("padding_mode", "zeros")
    aligned = bool(call.attribute("align_corners", 0))
    return call.give(grid_sample(call.ops, call.x(), call.x(1), mode=mode, padding=border, align_corners=aligned))


@rule("AffineGrid", known=(1,))
def _affine_grid(call: NodeCall[Any]) -> Value:
    aligned = bool(call.attribute("align_corners", 0))
    return call.give(affine_grid(call.ops, call.x(), size=call.ints(1, "size"), align_corners=aligned))


@rule("Col2Im", known=(1, 2))
def _col2im(call: NodeCall[Any]) -> Value:
    sizes = call.ints(1, "image_shape")
    kernel = tuple(int(size) for size in call.known(2, "block_shape").ravel())
    rank = len(kernel)
    pads = call.attribute("pads", [0] * (2 * rank))
    if pads[:rank] != pads[rank:]:
        raise UnsupportedError("its padding differs before and behind")
    static = {
        "stride": tuple(call.attribute("strides", [1] * rank)),
        "padding": tuple(pads[:rank]),
        "dilation": tuple(call.attribute("dilations", [1] * rank)),
    }
    return call.give(fold(call.ops, call.x(), size=sizes, kernel=kernel, **static))
