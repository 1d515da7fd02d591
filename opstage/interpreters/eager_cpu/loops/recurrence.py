"""Linear recurrences along an axis."""

from __future__ import annotations

from ...host import Array
from .jit import loop


@loop()
def linear_recurrence(reverse: int, a: Array, b: Array, out: Array) -> None:
    """Compute out[:, k] = a[:, k] · out[:, k - 1] + b[:, k] from 0 on, or from the last k down if `reverse`."""
    length = a.shape[1]
    for i in range(a.shape[0]):
        for step in range(length):
            k = length - 1 - step if reverse else step
            before = k + 1 if reverse else k - 1
            if step == 0:
                for j in range(a.shape[2]):
                    out[i, k, j] = a[i, k, j] * 0 + b[i, k, j]
            else:
                for j in range(a.shape[2]):
                    out[i, k, j] = a[i, k, j] * out[i, before, j] + b[i, k, j]
