"""Twins: images and channels: padding, windows, resizing and sampling."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tests.parity.twin import Twin, both, normal, uniform
from tests.parity.twin import derived_twin as twin

_IMAGES = normal((2, 3, 6, 7))
_WINDOW: Any = {"kernel": (2, 3), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}


def _pad(x: torch.Tensor, padding: Any, mode: str) -> torch.Tensor:
    names = {"edge": "replicate", "wrap": "circular"}
    return functional.pad(x, [n for pair in reversed(padding[2:]) for n in pair], names.get(mode, mode))


def _unfold(x: torch.Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    return functional.unfold(x, kernel, dilation, padding, stride)


def _fold(x: torch.Tensor, size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    return functional.fold(x, size, kernel, dilation, padding, stride)


TWINS: list[Twin] = [
    twin(
        "pad",
        _pad,
        *(
            {"padding": ((0, 0), (0, 0), (2, 1), (0, 3)), "mode": mode}
            for mode in ("constant", "edge", "reflect", "wrap")
        ),
        arrays=_IMAGES,
    ),
    twin(
        "pixel_shuffle",
        lambda x, factor: functional.pixel_shuffle(x, factor),
        {"factor": 2},
        arrays=normal((2, 8, 2, 3)),
    ),
    twin(
        "pixel_unshuffle",
        lambda x, factor: functional.pixel_unshuffle(x, factor),
        {"factor": 2},
        arrays=normal((3, 4, 6)),
    ),
    twin("unfold", _unfold, _WINDOW, arrays=_IMAGES),
    twin("fold", _fold, {"size": (3, 7), **_WINDOW}, arrays=normal((2, 12, 6))),
    twin(
        "adaptive_avg_pool",
        lambda x, size: functional.adaptive_avg_pool2d(x, size),
        *({"size": size} for size in ((1, 1), (2, 4), (3, None), (7, 6))),
        arrays=_IMAGES,
        terms=42,
    ),
    twin(
        "adaptive_max_pool",
        lambda x, size: functional.adaptive_max_pool2d(x, size),
        {"size": (1, 1)},
        {"size": (4, 3)},
        arrays=_IMAGES,
    ),
    twin("global_max_pool", lambda x: torch.amax(x, (2, 3)), arrays=_IMAGES),
    twin(
        "lp_pool",
        lambda x, p, kernel, stride: functional.lp_pool2d(x, p, kernel, stride),
        {"p": 2, "kernel": (2, 3), "stride": (1, 2)},
        {"p": 3, "kernel": (2, 2), "stride": (2, 2)},
        arrays=uniform(0.1, 2.0, (2, 3, 6, 7)),
        terms=12,
    ),
    twin(
        "instance_norm",
        lambda x, gamma, beta, eps: functional.instance_norm(x, None, None, gamma, beta, eps=eps),
        {"eps": 1e-3},
        arrays=both(_IMAGES, normal((3,), (3,))),
        terms=84,
    ),
    twin(
        "local_response_norm",
        lambda x, **static: functional.local_response_norm(x, **static),
        {"size": 4, "alpha": 0.5, "beta": 0.6, "k": 2.0},
        {"size": 3},
        arrays=normal((2, 5, 3, 2)),
        terms=5,
    ),
]


# resize, grid_sample, affine_grid -------------------------------------------------------------------------------------

_PICTURES = normal((2, 3, 5, 7))
_NAMES = {"linear": "bilinear", "cubic": "bicubic"}


def _resize(x: torch.Tensor, **static: Any) -> torch.Tensor:
    mode, corners = static["mode"], static.get("coordinates") == "align_corners"
    if mode == "nearest":
        name = "nearest" if static.get("rounding") == "floor" else "nearest-exact"
        return functional.interpolate(x, static.get("size"), static.get("scale"), name)
    return functional.interpolate(
        x,
        static.get("size"),
        static.get("scale"),
        _NAMES[mode],
        align_corners=corners,
        antialias=static.get("antialias", False),
    )


def _grid(x: torch.Tensor, grid: torch.Tensor, mode: str, padding: str, align_corners: bool) -> torch.Tensor:
    return functional.grid_sample(x, grid, _NAMES.get(mode, mode), padding, align_corners)


_PLACES = both(_PICTURES, uniform(-1.3, 1.3, (2, 4, 6, 2)))

TWINS += [
    twin(
        "resize",
        _resize,
        *(
            {"size": size, "mode": mode, "coordinates": coordinates}
            for size in ((10, 14), (3, 4))
            for mode in ("linear", "cubic")
            for coordinates in ("half_pixel", "align_corners")
        ),
        {"scale": 0.6, "mode": "linear"},
        {"size": (3, 2), "mode": "linear", "antialias": True},
        {"size": (3, 2), "mode": "cubic", "antialias": True},
        {"size": (8, 3), "mode": "nearest", "coordinates": "asymmetric", "rounding": "floor"},
        {"size": (8, 3), "mode": "nearest", "rounding": "round_prefer_ceil"},
        arrays=_PICTURES,
        terms=100,
    ),
    twin(
        "grid_sample",
        _grid,
        *(
            {"mode": mode, "padding": padding, "align_corners": corners}
            for mode, corners in (("linear", False), ("linear", True), ("cubic", False), ("nearest", False))
            for padding in ("zeros", "border", "reflection")
        ),
        arrays=_PLACES,
        terms=200,
    ),
    twin(
        "affine_grid",
        lambda theta, size, align_corners: functional.affine_grid(theta, size, align_corners),
        {"size": (2, 1, 3, 4), "align_corners": False},
        {"size": (2, 1, 3, 4), "align_corners": True},
        arrays=normal((2, 2, 3)),
        terms=12,
    ),
]
