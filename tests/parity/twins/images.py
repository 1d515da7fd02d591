"""Twins: the functions of opstage.ops.derived for images and channels."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from tests.parity.twin import Case, Twin, both, normal, uniform
from tests.parity.twins.arrange import twin

_IMAGES = normal((2, 3, 6, 7))
_WINDOW: Any = {"kernel": (2, 3), "stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}


def _pad(x: torch.Tensor, padding: Any, mode: str) -> torch.Tensor:
    names = {"edge": "replicate", "wrap": "circular"}
    return functional.pad(x, [n for pair in reversed(padding[2:]) for n in pair], names.get(mode, mode))


def _unfold(x: torch.Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    return functional.unfold(x, kernel, dilation, padding, stride)


def _fold(x: torch.Tensor, size: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> torch.Tensor:
    return functional.fold(x, size, kernel, dilation, padding, stride)


def _more(found: Twin, terms: int) -> Twin:
    """The same with longer sums."""
    cases = tuple(Case(case.name, case.arrays, case.static, terms) for case in found.cases)
    return Twin(found.op, found.torch, cases, found.call)


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
    _more(
        twin(
            "adaptive_avg_pool",
            lambda x, size: functional.adaptive_avg_pool2d(x, size),
            *({"size": size} for size in ((1, 1), (2, 4), (3, None), (7, 6))),
            arrays=_IMAGES,
        ),
        42,
    ),
    twin(
        "adaptive_max_pool",
        lambda x, size: functional.adaptive_max_pool2d(x, size),
        {"size": (1, 1)},
        {"size": (4, 3)},
        arrays=_IMAGES,
    ),
    twin("global_max_pool", lambda x: torch.amax(x, (2, 3)), arrays=_IMAGES),
    _more(
        twin(
            "lp_pool",
            lambda x, p, kernel, stride: functional.lp_pool2d(x, p, kernel, stride),
            {"p": 2, "kernel": (2, 3), "stride": (1, 2)},
            {"p": 3, "kernel": (2, 2), "stride": (2, 2)},
            arrays=uniform(0.1, 2.0, (2, 3, 6, 7)),
        ),
        12,
    ),
    _more(
        twin(
            "instance_norm",
            lambda x, gamma, beta, eps: functional.instance_norm(x, None, None, gamma, beta, eps=eps),
            {"eps": 1e-3},
            arrays=both(_IMAGES, normal((3,), (3,))),
        ),
        84,
    ),
    _more(
        twin(
            "local_response_norm",
            lambda x, **static: functional.local_response_norm(x, **static),
            {"size": 4, "alpha": 0.5, "beta": 0.6, "k": 2.0},
            {"size": 3},
            arrays=normal((2, 5, 3, 2)),
        ),
        5,
    ),
]
