"""Twins: reading and writing at indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.nn import functional

from tests.parity.twin import Arrays, Case, Twin, both, fixed, integers, normal
from tests.parity.twin import derived_twin as twin


def _updates(x: tuple[int, ...], count: int) -> Arrays:
    """x, `count` updates of it, and where they go; more of them than places, so that some repeat."""
    return both(normal(x, (count, *x[1:])), integers(0, x[0], (count,)))


def _place(x: tuple[int, ...]) -> Arrays:
    return normal(x, x[1:])


def _added(x: torch.Tensor, v: torch.Tensor, index: Any) -> torch.Tensor:
    """x with v added at a tensor of indices, or at one place."""
    if not isinstance(index, torch.Tensor):
        index, v = torch.tensor([index]), v.unsqueeze(0)
    return x.index_add(0, index, v)


def _within(x: torch.Tensor, idx: torch.Tensor) -> torch.Tensor:
    """The total form, composed: zeros where an index is out of range."""
    inside = (idx >= 0) & (idx < x.shape[0])
    rows = x[idx.clamp(0, x.shape[0] - 1)]
    return torch.where(inside.reshape(*idx.shape, *(1,) * (x.ndim - 1)), rows, torch.zeros_like(rows))


_ZERO = {"mode": "zero"}
_OUTSIDE = both(normal((4, 3)), fixed([0, -1, 3, 4, 100, 2]))
_NARROW = both(normal((4, 3)), fixed(np.array([3, 0, 0], dtype=np.int32)))

TWINS: list[Twin] = [
    Twin(
        "gather_scalar",
        lambda x, index: x[index],
        tuple(Case(f"index {index}", normal((5,)), {"index": index}) for index in (0, 2, 4)),
    ),
    Twin(
        "gather_row",
        lambda x, index: x[index],
        tuple(Case(f"{s} {index}", normal(s), {"index": index}) for s in ((4, 3), (4, 2, 3)) for index in (0, 3)),
    ),
    Twin(
        "gather_vec",
        lambda x, idx: x[idx],
        tuple(Case(f"{s}", both(normal((6,)), integers(0, 6, s)), terms=4) for s in ((), (9,), (3, 4), (0,))),
    ),
    Twin(
        "gather_vec",
        lambda x, idx, mode: _within(x, idx),
        (Case("outside", both(normal((4,)), fixed([5, 0, -1])), _ZERO),),
    ),
    Twin(
        "gather_rows",
        lambda x, idx: functional.embedding(idx, x),
        (
            *(Case(f"{s}", both(normal((6, 3)), integers(0, 6, s)), terms=4) for s in ((), (9,), (3, 4), (0,))),
            Case("one row", both(normal((6, 3)), fixed([2] * 50)), terms=50),
            Case("short integers", _NARROW),
        ),
    ),
    Twin("gather_rows", lambda x, idx: x[idx], (Case("blocks", both(normal((4, 2, 3)), integers(0, 4, (5,)))),)),
    Twin("gather_rows", lambda x, idx, mode: _within(x, idx), (Case("outside", _OUTSIDE, _ZERO),)),
    Twin("scatter_add_vec", _added, (Case("repeated", _updates((4,), 20), terms=20), Case("none", _updates((4,), 0)))),
    Twin(
        "scatter_add_vec",
        _added,
        tuple(Case(f"one at {index}", _place((4,)), {"index": index}) for index in (0, 3)),
        call=lambda ops, x, v, index: ops.scatter_add_vec(x, v, index),
    ),
    Twin(
        "scatter_add_row",
        _added,
        (Case("repeated", _updates((4, 3), 20), terms=20), Case("blocks", _updates((3, 2, 2), 4), terms=4)),
    ),
    Twin(
        "scatter_add_row",
        _added,
        tuple(Case(f"one at {index}", _place((4, 3)), {"index": index}) for index in (0, 3)),
        call=lambda ops, x, v, index: ops.scatter_add_row(x, v, index),
    ),
]


# Functions of derived that read and write at places -------------------------------------------------------------------

_X = normal((3, 4))
_NAMES = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _apart(rng: np.random.Generator) -> tuple[Any, ...]:
    """Indices that name no place twice, where PyTorch leaves open which update stands."""
    return (np.argsort(rng.random((3, 4)), axis=1)[:, :3],)


def _put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor, axis: int, reduce: str) -> torch.Tensor:
    if reduce == "set":
        return torch.scatter(x, axis, i, v)
    return torch.scatter_reduce(x, axis, i, v, _NAMES[reduce])


_PAIRS: Arrays = fixed([[0, 1], [2, 3], [0, 1], [1, 1]])
_ONCE: Arrays = fixed([[0, 1], [2, 3], [1, 1]])

TWINS += [
    twin(
        "take_along_axis",
        lambda x, i, axis: torch.gather(x, axis, i),
        {"axis": 1},
        arrays=both(_X, integers(0, 4, (3, 6))),
    ),
    twin("put_along_axis", _put, {"axis": 1, "reduce": "set"}, arrays=both(_X, _apart, normal((3, 3)))),
    twin(
        "put_along_axis",
        _put,
        *({"axis": 1, "reduce": reduce} for reduce in _NAMES),
        arrays=both(_X, integers(0, 4, (3, 6)), normal((3, 6))),
    ),
    twin("gather_nd", lambda x, i: x[i[:, 0], i[:, 1]], arrays=both(normal((3, 4, 2)), _PAIRS)),
    twin(
        "scatter_nd",
        lambda x, i, v: torch.index_put(x, (i[:, 0], i[:, 1]), v),
        arrays=both(normal((3, 4, 2)), _ONCE, normal((3, 2))),
    ),
    twin(
        "scatter_nd",
        lambda x, i, v, reduce: torch.index_put(x, (i[:, 0], i[:, 1]), v, accumulate=True),
        {"reduce": "add"},
        arrays=both(normal((3, 4, 2)), _PAIRS, normal((4, 2))),
    ),
    twin(
        "index_add",
        lambda x, i, v, axis: torch.index_add(x, axis, i, v),
        {"axis": 1},
        arrays=both(_X, fixed([3, 0, 3]), normal((3, 3))),
    ),
    twin(
        "nonzero",
        lambda m, size: (torch.nonzero(m)[:size], torch.count_nonzero(m)),
        {"size": 3},
        arrays=fixed([[True, False], [True, True]]),
    ),
    twin(
        "masked_select",
        lambda x, m, size: (torch.masked_select(x, m), torch.count_nonzero(m)),
        {"size": 3},
        arrays=both(normal((2, 2)), fixed([[True, False], [True, True]])),
    ),
]
