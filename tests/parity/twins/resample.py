"""Twins: resize, grid_sample and affine_grid of opstage.ops.derived."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tests.parity.twin import Case, Twin, both, normal, uniform
from tests.parity.twins.arrange import twin

_IMAGES = normal((2, 3, 5, 7))
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


def _summed(found: Twin, terms: int) -> Twin:
    """The same with sums of so many terms."""
    cases = tuple(Case(case.name, case.arrays, case.static, terms) for case in found.cases)
    return Twin(found.op, found.torch, cases, found.call)


_PLACES = both(_IMAGES, uniform(-1.3, 1.3, (2, 4, 6, 2)))

TWINS: list[Twin] = [
    _summed(
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
            arrays=_IMAGES,
        ),
        100,
    ),
    _summed(
        twin(
            "grid_sample",
            _grid,
            *(
                {"mode": mode, "padding": padding, "align_corners": corners}
                for mode, corners in (("linear", False), ("linear", True), ("cubic", False), ("nearest", False))
                for padding in ("zeros", "border", "reflection")
            ),
            arrays=_PLACES,
        ),
        200,
    ),
    _summed(
        twin(
            "affine_grid",
            lambda theta, size, align_corners: functional.affine_grid(theta, size, align_corners),
            {"size": (2, 1, 3, 4), "align_corners": False},
            {"size": (2, 1, 3, 4), "align_corners": True},
            arrays=normal((2, 2, 3)),
        ),
        12,
    ),
]
