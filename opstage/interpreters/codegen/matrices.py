"""Views as operands of matrix products: whether a library can read them in place."""

from __future__ import annotations

from typing import NamedTuple

from .views import View


class Leading(NamedTuple):
    """A matrix as a BLAS sees it: whether it is stored transposed, and its leading dimension."""

    transposed: bool
    dimension: int


def leading_dimension(view: View) -> Leading | None:
    """Return the layout of the matrices along the last two axes; None if neither axis has a unit stride."""
    (m, k), (sm, sk) = view.shape[-2:], view.strides[-2:]
    if (sk == 1 or k == 1) and (m == 1 or sm >= k):
        return Leading(False, sm if m > 1 else k)
    if (sm == 1 or m == 1) and (k == 1 or sk >= m):
        return Leading(True, sk if k > 1 else m)
    return None


def batch_axes(a: View, b: View) -> list[tuple[int, int, int]]:
    """Return (size, stride in a, stride in b) of the batch axes, merged where possible."""
    axes: list[tuple[int, int, int]] = []
    for n, s, t in zip(a.shape[:-2], a.strides[:-2], b.strides[:-2]):
        if n == 1:
            continue
        if axes and axes[-1][1] == s * n and axes[-1][2] == t * n:
            axes[-1] = (axes[-1][0] * n, s, t)
        else:
            axes.append((n, s, t))
    return axes
