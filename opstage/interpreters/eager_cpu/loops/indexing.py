"""Reading and adding to entries at indices."""

from __future__ import annotations

from ...host import Array
from .jit import loop


@loop()
def scatter_add_rows(v: Array, idx: Array, out: Array) -> None:
    """Compute out[idx[i]] += v[i] in order; indices out of range are skipped."""
    for i in range(idx.size):
        row = idx[i]
        if 0 <= row < out.shape[0]:
            for j in range(out.shape[1]):
                out[row, j] += v[i, j]


@loop()
def add_along(v: Array, idx: Array, out: Array) -> None:
    """Compute out[i, idx[j]] += v[i, j] in the order of j; indices out of range are skipped."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            row = idx[j]
            if 0 <= row < out.shape[1]:
                for k in range(out.shape[2]):
                    out[i, row, k] += v[i, j, k]


@loop()
def take_along(x: Array, idx: Array, out: Array) -> None:
    """Compute out[i, j] = x[i, idx[j]]."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            row = idx[j]
            for k in range(out.shape[2]):
                out[i, j, k] = x[i, row, k]


@loop()
def take_numbers(x: Array, idx: Array, out: Array) -> None:
    """Compute the same for entries of one number, many at a time."""
    for i in range(out.shape[0]):
        for j in range(idx.size):
            out[i, j] = x[i, idx[j]]
