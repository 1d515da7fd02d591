"""Random programs of inputs with declared ranges, for which finite results are claimed or not, and extreme inputs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import opstage
from opstage import Options, Spec, derived
from opstage.analysis.ranges import ASSUMPTIONS
from opstage.facts import RangeReport, ranges_of
from tests.analysis.ranges.test_ranges_of_ops import outside

RANGES = [
    (0.0, 1.0),
    (-1.0, 1.0),
    (-10.0, 10.0),
    (-100.0, 100.0),
    (0.0, 50.0),
    (1e-30, 1.0),
    (1e-6, 1.0),
    (0.0, 1e38),
    (-1e19, 1e19),
    (0.5, 2.0),
    (-3.0, -0.25),
    (1e-38, 1e-20),
]


def _rows(reduce: str) -> Callable[..., Any]:
    return lambda ops, x: ops.broadcast_to(getattr(ops, reduce)(x, axis=1, keepdims=True), shape=x.shape)


def _columns(reduce: str) -> Callable[..., Any]:
    return lambda ops, x: ops.broadcast_to(getattr(ops, reduce)(x, axis=0, keepdims=True), shape=x.shape)


NAMES = """
exp log sqrt neg abs inv sin cos tan tanh sigmoid relu softplus erf asin acos atan sinh cosh asinh atanh expm1 log1p
log2 exp2 log_sigmoid floor gelu silu elu mish softsign
"""
UNARY: dict[str, Callable[..., Any]] = {
    **{name: (lambda ops, x, name=name: getattr(ops, name)(x)) for name in NAMES.split()},
    "softmax": lambda ops, x: ops.softmax(x, axis=1),
    "log_softmax": lambda ops, x: ops.log_softmax(x, axis=1),
    "square": lambda ops, x: x * x,
    "cube": lambda ops, x: ops.pow(x, exponent=3),
    "root by pow": lambda ops, x: ops.pow(x, exponent=0.5),
    "inverse square": lambda ops, x: ops.pow(x, exponent=-2),
    "1 - x": lambda ops, x: 1 - x,
    "x + 1": lambda ops, x: x + 1,
    "x + 1e-6": lambda ops, x: x + 1e-6,
    "x + 1e-12": lambda ops, x: x + 1e-12,
    "3 x": lambda ops, x: 3 * x,
    "1e-20 x": lambda ops, x: 1e-20 * x,
    "clamp": lambda ops, x: ops.clamp(x, lo=1e-6, hi=1.0),
    "clamp to signs": lambda ops, x: ops.clamp(x, lo=-1.0, hi=1.0),
    "safe_log": lambda ops, x: ops.safe_log(x, eps=1e-6),
    "positive part or 1": lambda ops, x: ops.select(x > 0, x, ops.full(shape=x.shape, value=1.0)),
    "log where positive": lambda ops, x: ops.log(ops.select(x > 0, x, ops.full(shape=x.shape, value=1.0))),
    "shifted": lambda ops, x: x - _rows("reduce_max")(ops, x),
    "share": lambda ops, x: x / _rows("reduce_sum")(ops, x),
    "by magnitude": lambda ops, x: x / ops.maximum(_rows("reduce_max")(ops, ops.abs(x)), 1e-12),
    "centred": lambda ops, x: x - _rows("reduce_mean")(ops, x),
    "layer_norm": lambda ops, x: ops.layer_norm(x, None, None),
    "norm": lambda ops, x: ops.broadcast_to(derived.norm(ops, x, axis=1, keepdims=True), shape=x.shape),
    "std": lambda ops, x: ops.broadcast_to(derived.std(ops, x, axis=1, keepdims=True), shape=x.shape),
    "cumsum": lambda ops, x: ops.cumsum(x, axis=1),
    "cumprod": lambda ops, x: ops.cumprod(x, axis=1),
    "matmul": lambda ops, x: x @ ops.full(shape=(4, 4), value=0.5),
    "whole": lambda ops, x: ops.cast(ops.cast(x, dtype="int32"), dtype="float32"),
    "gradient of log": lambda ops, x: opstage.transform.grad(ops, lambda ops, x: ops.sum(ops.log(x)), x),
    "gradient of a product": lambda ops, x: opstage.transform.grad(
        ops, lambda ops, x: ops.sum(ops.reduce_prod(x, axis=1)), x
    ),
    "recurrence": lambda ops, x: ops.linear_recurrence(x, 1 - x, axis=1),
    "half a square": lambda ops, x: 0.5 * x * x,
    "gradient of sqrt": lambda ops, x: opstage.transform.grad(ops, lambda ops, x: ops.sum(ops.sqrt(x)), x),
    **{f"{r} of rows": _rows(r) for r in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod")},
    **{f"{r} of columns": _columns(r) for r in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_prod")},
}
BINARY: dict[str, Callable[..., Any]] = {
    name: (lambda ops, x, y, name=name: getattr(ops, name)(x, y))
    for name in ("add", "sub", "mul", "div", "maximum", "minimum", "power", "mod", "floor_divide", "atan2")
}
BINARY["mul twice"] = BINARY["mul"]
BINARY["select"] = lambda ops, x, y: ops.select(x < y, x, y)
BINARY["weighted"] = lambda ops, x, y: _rows("reduce_sum")(ops, x * y) / (_rows("reduce_sum")(ops, ops.abs(y)) + 1e-6)


def drawn(rng: random.Random, steps: int) -> tuple[Callable[..., Any], tuple[Spec, ...], tuple[Any, ...]]:
    """A program, the Specs of its inputs, and what it does, in words."""
    size = rng.choice([3, "T"])
    ranges = [rng.choice(RANGES) for _ in range(2)]
    specs = tuple([Spec((size, 4), range=ends) for ends in ranges])
    chosen = []
    for at in range(steps):
        operands = [rng.choice([at + 1, rng.randrange(at + 2)]) for _ in range(2)]
        name = rng.choice([*UNARY, *UNARY, *BINARY, *BINARY, *BINARY])
        chosen.append((name, operands))

    def program(ops: Any, x: Any, y: Any) -> Any:
        values = [x, y]
        for name, (a, b) in chosen:
            values.append(UNARY[name](ops, values[a]) if name in UNARY else BINARY[name](ops, values[a], values[b]))
        return values[-1]

    return program, specs, (size, *ranges, *chosen)


def extremes(rng: random.Random, specs: tuple[Spec, ...]) -> Iterator[list[Any]]:
    """Arrays of ends, zeros, tiny and usual numbers within the ranges; a named size is 1, 5 and 64."""
    for draw in range(8):
        arrays, rows = [], rng.choice([1, 5, 64])
        for spec in specs:
            assert spec.range is not None
            low, high = spec.range
            usual = [0.0, 1e-45, -1e-45, 1e-38, -1e-38, 1e-20, 1e-6, 1.0, -1.0, 0.5, (low + high) / 2]
            within = [low, high, *[v for v in usual if low <= v <= high]]
            given = rng.choices(within, k=rng.choice([1, 1, 2, 4]))
            shape = (rows if spec.entries[0] == "T" else 3, 4)
            values = [low, high][draw % 2] if draw < 2 else np.array(rng.choices(given, k=shape[0] * 4)).reshape(shape)
            lowest, highest = np.float32(low), np.float32(high)
            lowest = lowest if lowest >= low else np.nextafter(lowest, np.float32(np.inf))
            highest = highest if highest <= high else np.nextafter(highest, np.float32(-np.inf))
            arrays.append(np.clip(np.full(shape, values).astype("float32"), lowest, highest))
        yield arrays


def read(program: Callable[..., Any], specs: tuple[Spec, ...]) -> RangeReport | None:
    """The ranges of a program; None if the checker refuses it."""
    report = opstage.check(program, *specs, train=False)
    return ranges_of(report) if report.ok else None


def refuted(rng: random.Random, program: Callable[..., Any], specs: tuple[Spec, ...], backend: Any) -> tuple[bool, str]:
    """Whether finite results are claimed of a program, and what of a run contradicts its ranges."""
    found = read(program, specs)
    if found is None:
        return False, ""
    claimed = found.safe and not found.unbounded
    options = Options(dtype="float32", backend=backend)
    with np.errstate(all="ignore"):
        for arrays in extremes(rng, specs):
            out = np.asarray(opstage.run(program, *arrays, options=options))
            if len(found.assumptions) > len(ASSUMPTIONS) and np.isnan(out).any():
                continue  # ranges take for granted that no row is -inf as a whole
            wrong = outside(found.outputs[0][1], out)
            if wrong or (claimed and not np.isfinite(out).all()):
                return claimed, f"{found.outputs[0][1]}: {wrong or 'not finite'} at {[a.ravel()[:4] for a in arrays]}"
    return claimed, ""
