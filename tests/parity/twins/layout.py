"""Twins: ops that move values and compute none."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from opstage.ops import derived
from tests.parity.twin import CUBE, SHAPES, Arrays, Case, Twin, both, integers, masks, normal
from tests.parity.twin import derived_twin as twin


def _list(*shapes: tuple[int, ...]) -> Arrays:
    """A sequence of tensors as one operand."""
    return lambda rng: ([rng.standard_normal(shape) for shape in shapes],)


def _sliced(x: torch.Tensor, axis: int, start: int, length: int, step: int) -> torch.Tensor:
    at = [slice(None)] * x.ndim
    at[axis] = slice(start, start + length * step, step)
    return x[tuple(at)]


def _padded(x: torch.Tensor, padding: Any, value: float = 0.0) -> torch.Tensor:
    return functional.pad(x, [n for pair in reversed(padding) for n in pair], value=value)


def _spaced(x: torch.Tensor, padding: Any, interior: Any, value: float = 0.0) -> torch.Tensor:
    """Cells between the entries first, then around them."""
    out = x.new_full([(n - 1) * (gap + 1) + 1 for n, gap in zip(x.shape, interior)], value)
    out[tuple(slice(None, None, gap + 1) for gap in interior)] = x
    return _padded(out, padding, value)


_BROADCAST = (
    ((), (2, 3)),
    ((3,), (2, 3)),
    ((1,), (4,)),
    ((2, 1), (2, 5)),
    ((2, 1, 3), (4, 2, 5, 3)),
    ((1, 1), (3, 2)),
    ((3,), (3,)),
    ((1, 3), (0, 3)),
    ((0, 1), (0, 3)),
)
_RESHAPES = (
    ((2, 6), (3, 4)),
    ((2, 6), (-1,)),
    ((2, 6), (4, -1)),
    ((12,), (2, 1, 6)),
    ((), (1, 1)),
    ((1,), ()),
    ((0, 3), (3, 0)),
    ((2, 3, 4), (6, -1)),
)
_SLICES = (
    ((7,), 0, 2, 3, 1),
    ((7,), -1, 0, 3, 3),
    ((5, 6), 1, 1, 2, 2),
    ((5, 6), -2, 4, 1, 1),
    ((2, 3, 4), 1, 0, 0, 1),
)
_PADS = (
    ((4,), [(1, 2)]),
    ((3, 4), [(0, 1), (2, 0)]),
    ((2, 3, 4), [(1, 1), (0, 0), (0, 3)]),
    ((0, 2), [(1, 0), (0, 1)]),
    ((), []),
)

TWINS: list[Twin] = [
    Twin(
        "broadcast_to",
        lambda x, shape: torch.broadcast_to(x, shape),
        tuple(Case(f"{a} to {b}", normal(a), {"shape": b}, terms=40) for a, b in _BROADCAST),
    ),
    Twin(
        "reshape",
        lambda x, shape: torch.reshape(x, shape),
        tuple(Case(f"{a} to {b}", normal(a), {"shape": b}) for a, b in _RESHAPES),
    ),
    Twin(
        "flatten",
        lambda x, start, end: torch.flatten(x, start, end),
        tuple(
            Case(f"{shape} {start} to {end}", normal(shape), {"start": start, "end": end})
            for shape in ((), (5,), (3, 4), (2, 3, 4), (2, 3, 2, 2))
            for start, end in ((0, -1), (1, -1), (1, 2), (-2, -1), (0, 1))
            if not shape and (start, end) == (0, -1) or len(shape) > max(start, end, 1)
        ),
    ),
    Twin(
        "permute",
        lambda x, axes: torch.permute(x, axes),
        (
            *(Case(f"{axes}", normal((2, 3, 4)), {"axes": axes}) for axes in itertools.permutations(range(3))),
            Case("negative", normal((2, 3, 4)), {"axes": (-1, 0, -2)}),
            Case("scalar", normal(()), {"axes": ()}),
            Case("four", normal((2, 3, 4, 5)), {"axes": (2, 0, 3, 1)}),
            Case("integers", integers(-9, 9, (2, 3)), {"axes": (1, 0)}),
        ),
    ),
    Twin("transpose2d", torch.t, tuple(Case(f"{s}", normal(s)) for s in ((3, 4), (1, 5), (0, 2)))),
    Twin("transpose3d_first_to_last", lambda x: x.permute(1, 2, 0), (Case("cube", normal((2, 3, 4))),)),
    Twin("transpose3d_last_to_first", lambda x: x.permute(2, 0, 1), (Case("cube", normal((2, 3, 4))),)),
    Twin("transpose3d_last_two", lambda x: x.transpose(1, 2), (Case("cube", normal((2, 3, 4))),)),
    Twin(
        "swap_adjacent_at_depth",
        lambda x, depth: x.transpose(depth, depth + 1),
        tuple(Case(f"depth {depth}", normal((2, 3, 4, 5)), {"depth": depth}) for depth in range(3)),
    ),
    Twin(
        "concat",
        lambda xs, axis: torch.cat(xs, axis),
        (
            Case("vectors", _list((2,), (3,), (0,)), {"axis": 0}),
            Case("rows", _list((2, 3), (1, 3)), {"axis": 0}),
            Case("columns", _list((2, 3), (2, 1), (2, 2)), {"axis": -1}),
            Case("middle", _list((2, 1, 3), (2, 4, 3)), {"axis": 1}),
            Case("one", _list((2, 3)), {"axis": -2}),
        ),
    ),
    Twin(
        "stack",
        lambda xs, axis: torch.stack(xs, axis),
        tuple(Case(f"axis {axis}", _list((2, 3), (2, 3), (2, 3)), {"axis": axis}) for axis in range(-3, 3)),
    ),
    Twin(
        "slice",
        _sliced,
        tuple(
            Case(f"{shape} {a} {s} {n} {k}", normal(shape), {"axis": a, "start": s, "length": n, "step": k})
            for shape, a, s, n, k in _SLICES
        ),
    ),
    Twin(
        "split",
        lambda x, sizes, axis: torch.split(x, sizes, axis),
        (
            Case("rows", normal((6, 2)), {"sizes": [1, 3, 2], "axis": 0}),
            Case("columns", normal((2, 6)), {"sizes": [4, 2], "axis": -1}),
            Case("empty part", normal((2, 3)), {"sizes": [0, 3], "axis": 1}),
        ),
    ),
    Twin("pad", _padded, tuple(Case(f"{s} {p}", normal(s), {"padding": p}) for s, p in _PADS)),
    Twin("pad", _padded, tuple(Case(f"{s} {p} with -2.5", normal(s), {"padding": p, "value": -2.5}) for s, p in _PADS)),
    Twin(
        "pad",
        _spaced,
        tuple(
            Case(f"spaced {gaps}", normal((3, 4)), {"padding": [(1, 0), (0, 2)], "interior": gaps, "value": value})
            for gaps in ((1, 0), (2, 3), (0, 0))
            for value in (0.0, 1.5)
        ),
    ),
    Twin(
        "squeeze",
        lambda x, axis: torch.squeeze(x) if axis is None else torch.squeeze(x, axis),
        tuple(
            Case(f"{shape} {axis}", normal(shape), {"axis": axis})
            for shape, axis in (((1, 3, 1), None), ((1, 3, 1), 0), ((1, 3, 1), -1), ((1, 3, 1), (0, 2)), ((2, 3), None))
        ),
    ),
    Twin(
        "unsqueeze",
        lambda x, axis: torch.unsqueeze(x, axis),
        tuple(
            Case(f"{shape} {axis}", normal(shape), {"axis": axis})
            for shape in SHAPES
            for axis in range(-len(shape) - 1, len(shape) + 1)
        ),
    ),
]


# Functions of derived that arrange elements ---------------------------------------------------------------------------


def _made(name: str, torch_call: Callable[..., Any], *cases: Mapping[str, Any]) -> Twin:
    """What is made from nothing, times a scalar."""
    made: Any = getattr(derived, name)
    return Twin(
        f"derived.{name}",
        lambda x, **static: x * torch_call(static, x.dtype),
        tuple(Case(f"{static}", normal(()), static, terms=10) for static in cases),
        call=lambda ops, x, args=(), **static: x * made(ops, *args, **static, dtype=x.dtype),
    )


TWINS += [
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
