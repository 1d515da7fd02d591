"""Twins: Fourier transforms, whose complex tensors are PyTorch's view_as_real."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.parity.twin import Case, Twin


def _made(transform: Callable[..., Any], takes: bool, gives: bool) -> Callable[..., Any]:
    """The transform on real tensors, of complex ones where it takes or gives them."""

    def call(x: torch.Tensor, axis: int = -1, norm: str = "backward", n: int | None = None) -> torch.Tensor:
        options: dict[str, Any] = {"dim": axis, "norm": norm} if n is None else {"dim": axis, "norm": norm, "n": n}
        y = transform(torch.view_as_complex(x.contiguous()) if takes else x, **options)
        return torch.view_as_real(y) if gives else y

    return call


def _cases(*shape: int, **static: Any) -> tuple[Case, ...]:
    return (
        Case("last", lambda rng: (rng.standard_normal(shape),), static, terms=20),
        Case("inner", lambda rng: (rng.standard_normal((2, *shape)),), {"axis": 0, "norm": "ortho"}, terms=20),
    )


TWINS: list[Twin] = [
    Twin("fft", _made(torch.fft.fft, True, True), _cases(3, 6, 2)),
    Twin("ifft", _made(torch.fft.ifft, True, True), _cases(3, 5, 2)),
    Twin("rfft", _made(torch.fft.rfft, False, True), _cases(3, 6)),
    Twin("irfft", _made(torch.fft.irfft, True, False), _cases(3, 4, 2, n=7)),
]
