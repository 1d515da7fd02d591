"""Twins: the functions of opstage.ops.derived that arrange elements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from opstage.ops import derived
from tests.parity.twin import Arrays, Case, Twin, both, integers, masks, normal

CUBE = normal((2, 3, 4))


def twin(name: str, torch_call: Callable[..., Any], *cases: Mapping[str, Any], arrays: Arrays = CUBE) -> Twin:
    """A function of derived beside PyTorch's, both called with the statics of each case."""
    return Twin(
        f"derived.{name}",
        torch_call,
        tuple(Case(f"{static}", arrays, static, terms=4) for static in cases or ({},)),
        call=lambda ops, *xs, **static: getattr(derived, name)(ops, *xs, **static),
    )


def _made(name: str, torch_call: Callable[..., Any], *cases: Mapping[str, Any]) -> Twin:
    """What is made from nothing, times a scalar."""
    made: Any = getattr(derived, name)
    return Twin(
        f"derived.{name}",
        lambda x, **static: x * torch_call(static, x.dtype),
        tuple(Case(f"{static}", normal(()), static, terms=10) for static in cases),
        call=lambda ops, x, args=(), **static: x * made(ops, *args, **static, dtype=x.dtype),
    )


TWINS: list[Twin] = [
    twin(
        "take",
        lambda x, i, axis: torch.index_select(x, axis, i),
        {"axis": 1},
        {"axis": 0},
        arrays=both(CUBE, integers(0, 2, (3,))),
    ),
    twin("flip", lambda x, axis: torch.flip(x, axis), {"axis": (0,)}, {"axis": (1, -1)}),
    twin("roll", lambda x, shift, axis: torch.roll(x, shift, axis), {"shift": 5, "axis": 1}, {"shift": -1, "axis": 2}),
    twin("tile", lambda x, repeats: torch.tile(x, repeats), {"repeats": (2, 1, 2, 1)}, {"repeats": (3,)}),
    twin(
        "repeat_interleave",
        lambda x, repeats, axis: torch.repeat_interleave(
            x, repeats if isinstance(repeats, int) else torch.tensor(repeats), axis
        ),
        {"repeats": 2, "axis": 1},
        {"repeats": 3, "axis": None},
        {"repeats": (0, 2, 1), "axis": 1},
    ),
    twin("moveaxis", lambda x, source, target: torch.movedim(x, source, target), {"source": 0, "target": 2}),
    twin("swapaxes", lambda x, first, second: torch.swapaxes(x, first, second), {"first": 0, "second": 2}),
    twin("chunk", lambda x, chunks, axis: torch.chunk(x, chunks, axis), {"chunks": 3, "axis": 2}),
    twin("unbind", lambda x, axis: torch.unbind(x, axis), {"axis": 1}),
    twin("tril", lambda x, k: torch.tril(x, k), {"k": 0}, {"k": -1}),
    twin("triu", lambda x, k: torch.triu(x, k), {"k": 0}, {"k": 2}),
    twin(
        "diagonal", lambda x, k, first, second: torch.diagonal(x, k, first, second), {"k": 1, "first": 2, "second": 0}
    ),
    twin("diag", lambda x, k: torch.diag(x, k), {"k": 1}, {"k": -2}, arrays=normal((4,))),
    twin("trace", torch.trace, arrays=normal((4, 3))),
    twin(
        "masked_fill",
        lambda x, m, value: torch.masked_fill(x, m, value),
        {"value": 2.0},
        arrays=both(CUBE, masks((3, 4))),
    ),
    twin(
        "meshgrid",
        lambda *xs, indexing: torch.meshgrid(*xs, indexing=indexing),
        {"indexing": "ij"},
        {"indexing": "xy"},
        arrays=normal((2,), (3,)),
    ),
    _made("eye", lambda s, t: torch.eye(*s["args"], dtype=t), {"args": (3, 4)}),
    _made("arange", lambda s, t: torch.arange(*s["args"], s["step"], dtype=t), {"args": (1, 9), "step": 3}),
    _made("linspace", lambda s, t: torch.linspace(*s["args"], s["num"], dtype=t), {"args": (0.0, 1.0), "num": 9}),
]
