"""Programs on float32 numbers that are large, offset or cancelling, each with how exact it must be on any interpreter.

The reference is the decomposition in float64 on the very same numbers. Errors are relative to the greatest number of a
result, or of a gradient: what an element loses beside that is not to be had in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from opstage.ops import derived

ULP = 2.0**-23


@dataclass(frozen=True)
class Program:
    """One program.

    arrays      its operands, floats in float32
    within      the error allowed, in units of the last place of the greatest number of a result
    scale       that number, if the greatest is less: what cancels out of a result
    """

    name: str
    call: Callable[..., Any]
    arrays: Callable[[np.random.Generator], tuple[Any, ...]]
    within: float = 16
    scale: float = 0.0


def offset(
    by: float, *shapes: tuple[int, ...], spread: float = 1.0
) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Normal numbers of a standard deviation, around `by`."""
    return lambda rng: tuple((by + spread * rng.standard_normal(s)).astype(np.float32) for s in shapes)


def labelled(logits: Callable[[np.random.Generator], tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """Logits and a class for each position."""

    def make(rng: np.random.Generator) -> tuple[Any, ...]:
        (x,) = logits(rng)
        return x, rng.integers(0, x.shape[min(1, x.ndim - 1)], (*x.shape[:1], *x.shape[2:]) if x.ndim > 1 else ())

    return make


def _levels() -> list[Program]:
    """Scores with the same large number in all of them, apart by a few units of its last place and by much more."""
    found = []
    for level in (1e4, 1e6, 1e8, 1e30, -1e8):
        for spread in (4 * ULP * abs(level), 0.01 * abs(level)):
            name = f"{level:g}, apart by {spread:.2g}"
            rows, planes, heads = (offset(level, shape, spread=spread) for shape in ((8, 5), (2, 3, 4), (2, 5, 4)))
            for reduction in ("mean", "sum", "none"):
                for smoothing in (0.0, 0.1):
                    static = {"reduction": reduction, "label_smoothing": smoothing}
                    call = lambda ops, x, labels, s=static: ops.cross_entropy(x, labels, **s)  # noqa: E731
                    found.append(Program(f"cross_entropy, {reduction}, {smoothing}, {name}", call, labelled(rows)))
                    found.append(Program(f"cross_entropy of planes, {static}, {name}", call, labelled(planes)))
            for op in ("softmax", "log_softmax"):
                for axis in (0, 1):
                    call = lambda ops, x, op=op, axis=axis: getattr(ops, op)(x, axis=axis)  # noqa: E731
                    found.append(Program(f"{op} along {axis}, {name}", call, rows, scale=1.0))
            found.append(Program(f"logsumexp, {name}", lambda ops, x: derived.logsumexp(ops, x, axis=1), rows))
            # beta 0.5 is a power of two, so that what is asked is the op and not how beta is rounded
            pool = lambda ops, x: ops.smooth_max_pool(x, kernel=(2,), stride=(1,), padding=(0,), beta=0.5)  # noqa: E731
            found.append(Program(f"smooth_max_pool, {name}", pool, heads))
    return found


def _two_winners() -> list[Program]:
    """[m, m, 0] with label 0: softmax is [1/2, 1/2, 0], and the gradient [-1/2, 1/2, 0], however large m is."""
    found = []
    for m in (1e3, 1e6, 1e8, 1e20, 3e38):
        for rows in ([[m, m, 0.0]], [[m, 0.0, m]] * 3):
            arrays = lambda rng, rows=rows: (np.array(rows, np.float32), np.zeros(len(rows), np.int64))  # noqa: E731
            call = lambda ops, x, labels: ops.cross_entropy(x, labels)  # noqa: E731
            found.append(Program(f"cross_entropy of {rows[0]} {len(rows)}", call, arrays, within=2))
    return found


def _attention(name: str, causal: bool) -> Program:
    """Queries 2^k times as large as their keys' differences: scores that are large, of which two are equal."""

    def arrays(rng: np.random.Generator) -> tuple[Any, ...]:
        q = np.full((1, 4, 4), 2.0**12, np.float32)
        k = np.repeat(rng.integers(-3, 4, (1, 2, 4)), 2, axis=1).astype(np.float32)
        return q, k, rng.standard_normal((1, 4, 3)).astype(np.float32)

    return Program(
        f"attention, {name}", lambda ops, q, k, v: ops.scaled_dot_product_attention(q, k, v, causal=causal), arrays
    )


LEVELS = _levels()
WINNERS = [*_two_winners(), _attention("large scores", False), _attention("large scores, causal", True)]


def tenths(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """0.1 everywhere: in one running sum every addition is rounded the same way, so its error grows with the terms."""
    return lambda rng: tuple(np.full(s, 0.1, np.float32) for s in shapes)


def _sums(n: int, within: float) -> list[Program]:
    """Of some n terms, along axes in every place, and what contains such sums: means, losses, norms, gradients."""
    rows = (n // 16, 16)
    ways: list[tuple[str, Callable[..., Any], tuple[int, ...]]] = [
        ("sum", lambda ops, x: ops.sum(x), (n,)),
        ("sum of a prime number", lambda ops, x: ops.sum(x), (104729,)),
        ("mean", lambda ops, x: ops.reduce_mean(x, axis=0), (n,)),
        ("along axis 0", lambda ops, x: ops.reduce_sum(x, axis=0), rows),
        ("along axis 0 of columns that are far apart", lambda ops, x: ops.reduce_sum(x, axis=0), (n // 1024, 1024)),
        ("along axis 1", lambda ops, x: ops.reduce_sum(x, axis=1), rows[::-1]),
        ("along the middle", lambda ops, x: ops.reduce_sum(x, axis=1), (2, n // 16, 8)),
        ("along both ends", lambda ops, x: ops.reduce_sum(x, axis=(0, 2)), (n // 64, 4, 16)),
        ("along both ends, few rows", lambda ops, x: ops.reduce_sum(x, axis=(0, 2)), (16, 4, n // 64)),
        ("of a transposed matrix", lambda ops, x: ops.reduce_sum(ops.transpose2d(x), axis=1), rows),
        ("mean along axis 0", lambda ops, x: ops.reduce_mean(x, axis=0), rows),
        ("mse_loss", lambda ops, x: ops.mse_loss(x, ops.full(shape=x.shape, value=0.0, dtype=x.dtype)), (n,)),
        ("rms_norm", lambda ops, x: ops.rms_norm(x, None), (2, n // 2)),
        ("a product's", lambda ops, x: ops.matmul(x, ops.transpose2d(x)), (1, n)),
        ("mean of batch_norm", lambda ops, x: ops.batch_norm(x, None, None)[1], rows),
        ("mean of batch_norm of planes", lambda ops, x: ops.batch_norm(x, None, None)[1], (n // 64, 4, 4, 4)),
    ]  # fmt: skip
    # what a library does in a product is its own affair, and so is how it rounds a product of tenths
    own = [way for way in ways if way[0] != "a product's"]
    found = [Program(f"{n} tenths: {name}", call, tenths(shape), within) for name, call, shape in own]
    found += [Program(f"{n} terms: {name}", call, offset(1.0, shape), within) for name, call, shape in ways]
    one = lambda shape, rest: lambda rng: (np.ones(shape, np.float32), *rest(rng))  # noqa: E731
    spread: list[tuple[str, Callable[..., Any], Callable[..., Any]]] = [
        ("bias", lambda ops, b, x: ops.add(x, ops.broadcast_to(b, shape=x.shape)), one((16,), offset(0.0, rows))),
        ("a factor", lambda ops, b, x: ops.mul(x, ops.broadcast_to(b, shape=x.shape)), one((16,), offset(1.0, rows))),
        ("linear", lambda ops, b, x: ops.linear(ops.const(np.ones((16, 16))), b, x), one((16,), offset(1.0, rows))),
        ("layer_norm", lambda ops, g, x: ops.layer_norm(x, g, g), one((16,), offset(1.0, rows))),
        ("rms_norm", lambda ops, g, x: ops.rms_norm(x, g), one((16,), offset(1.0, rows))),
        ("batch_norm", lambda ops, g, x: ops.batch_norm(x, g, g)[0], one((16,), offset(1.0, rows))),
        ("group_norm", lambda ops, g, x: ops.group_norm(x, g, g, groups=2), one((4,), offset(1.0, (n // 64, 4, 16)))),
        ("conv", lambda ops, b, x: ops.conv(ops.const(np.ones((2, 1, 3))), b, x, stride=1, padding=1),
         one((2,), offset(1.0, (4, 1, n // 4)))),
    ]  # fmt: skip
    return found + [Program(f"{n} rows: gradient of {name}", call, arrays, within) for name, call, arrays in spread]


LONG = _sums(1 << 17, 12)
# Of so many terms a library's product of matrices is 144 ulp off, by its own order of sums.
LONGER = [program for program in _sums(1 << 23, 24) if "a product's" not in program.name]
