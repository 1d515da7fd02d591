"""Linear recurrences, and cumulative sums and products, along an axis.

What is accumulated depends on the step before it, so a row by itself waits for every sum: several are done at once.
"""

from __future__ import annotations

from ...host import Array
from .jit import loop


@loop()
def linear_recurrence(reverse: int, together: int, a: Array, b: Array, out: Array) -> None:
    """Compute out[:, k] = a[:, k] · out[:, k - 1] + b[:, k] from 0 on, or from the last k down if `reverse`."""
    length = a.shape[1]
    for first in range(0, a.shape[0], together):
        for step in range(length):
            k = length - 1 - step if reverse else step
            before = k + 1 if reverse else k - 1
            for i in range(first, min(first + together, a.shape[0])):
                if step == 0:
                    for j in range(a.shape[2]):
                        out[i, k, j] = a[i, k, j] * 0 + b[i, k, j]
                elif a.shape[2] == 1:
                    out[i, k, 0] = a[i, k, 0] * out[i, before, 0] + b[i, k, 0]
                else:
                    for j in range(a.shape[2]):
                        out[i, k, j] = a[i, k, j] * out[i, before, j] + b[i, k, j]


@loop()
def cumsum(exclusive: int, reverse: int, together: int, x: Array, out: Array) -> None:
    """Compute out[:, k] = out[:, k - 1] + x[:, k], or x[:, k - 1] if `exclusive`; from the last k down if `reverse`."""
    length = x.shape[1]
    for first in range(0, x.shape[0], together):
        for step in range(length):
            k = length - 1 - step if reverse else step
            before = k + 1 if reverse else k - 1
            term = before if exclusive else k
            for i in range(first, min(first + together, x.shape[0])):
                if step > 0:
                    for j in range(x.shape[2]):
                        out[i, k, j] = out[i, before, j] + x[i, term, j]
                elif exclusive:
                    for j in range(x.shape[2]):
                        out[i, k, j] = 0
                else:
                    for j in range(x.shape[2]):
                        out[i, k, j] = x[i, k, j]


@loop()
def cumprod(exclusive: int, reverse: int, together: int, x: Array, out: Array) -> None:
    """Compute out[:, k] = out[:, k - 1] · x[:, k], or x[:, k - 1] if `exclusive`; from the last k down if `reverse`."""
    length = x.shape[1]
    for first in range(0, x.shape[0], together):
        for step in range(length):
            k = length - 1 - step if reverse else step
            before = k + 1 if reverse else k - 1
            factor = before if exclusive else k
            for i in range(first, min(first + together, x.shape[0])):
                if step > 0:
                    for j in range(x.shape[2]):
                        out[i, k, j] = out[i, before, j] * x[i, factor, j]
                elif exclusive:
                    for j in range(x.shape[2]):
                        out[i, k, j] = 1
                else:
                    for j in range(x.shape[2]):
                        out[i, k, j] = x[i, k, j]
