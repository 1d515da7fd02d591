"""Programs that people write, each safe in float32 for the ranges of its inputs, beside a twin that is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from opstage import Spec, derived, transform

Program = Callable[..., Any]


class Twins(NamedTuple):
    """Two programs of inputs of these Specs."""

    safe: Program
    unsafe: Program
    specs: tuple[Spec, ...]


def _of(program: Program, safe: Any, unsafe: Any, *specs: Spec) -> Twins:
    """Twins of one program, which takes first what tells them apart."""
    return Twins(partial(program, safe), partial(program, unsafe), specs)


def _inverse(program: Program, *specs: Spec) -> Twins:
    """A program, and 1 over what it gives, which may be 0."""
    return Twins(program, lambda ops, *given: 1 / program(ops, *given), specs)


def spec(low: float, high: float, shape: str = "B 8", **more: Any) -> Spec:
    return Spec(shape, range=(low, high), **more)


UNIT, SIGNED, TEN, HUNDRED = spec(0, 1), spec(-1, 1), spec(-10, 10), spec(-100, 100)
KEEP = Spec("B 8", dtype="bool")
TWO_ROWS = spec(-10, 10, where=("B >= 2",))
QKV = spec(-10, 10, "T 8"), *[spec(-10, 10, "S 8")] * 2
LARGE = spec(-1e19, 1e19)
COUNTS = Spec("B", dtype="int64", range=(0, 100))


def rows(ops: Any, x: Any) -> Any:
    return ops.reduce_sum(x, axis=1, keepdims=True)


def peak(ops: Any, x: Any) -> Any:
    return ops.reduce_max(x, axis=1, keepdims=True)


def centred(ops: Any, x: Any) -> Any:
    return x - ops.reduce_mean(x, axis=1, keepdims=True)


def full(ops: Any, x: Any, value: float) -> Any:
    return ops.full(shape=x.shape, value=value, dtype=x.dtype)


def slope(loss: Program, ops: Any, x: Any, *others: Any) -> Any:
    return transform.grad(ops, lambda ops, x: ops.sum(loss(ops, x, *others)), x)


def z_score(eps: float, ops: Any, x: Any) -> Any:
    c = centred(ops, x)
    return c / ops.sqrt(ops.reduce_mean(c * c, axis=1, keepdims=True) + eps)


def cosine(eps: float, ops: Any, x: Any, y: Any) -> Any:
    lengths = ops.sqrt(rows(ops, x * x)) * ops.sqrt(rows(ops, y * y))
    return rows(ops, x * y) / (ops.maximum(lengths, eps) if eps else lengths)


def gaussian(eps: float, ops: Any, x: Any, m: Any, v: Any) -> Any:
    """-log N(x; m, v)."""
    return 0.5 * (ops.log(v + eps) + (x - m) * (x - m) / (v + eps) + math.log(2 * math.pi))


def dice(smooth: float, ops: Any, p: Any, t: Any) -> Any:
    overlap, total = ops.reduce_sum(p * t, axis=1), ops.reduce_sum(p, axis=1) + ops.reduce_sum(t, axis=1)
    return 1 - (2 * overlap + smooth) / (total + smooth)


def haversine(guarded: bool, ops: Any, a: Any, b: Any) -> Any:
    s, t = ops.sin((a - b) * 0.5), ops.sin((a + b) * 0.5)
    h = s * s + ops.cos(a) * ops.cos(b) * t * t
    return 2 * ops.asin(ops.sqrt(ops.clamp(h, lo=0.0, hi=1.0) if guarded else h))


def attention(scale: float, ops: Any, q: Any, k: Any, v: Any) -> Any:
    scores = ops.exp((q @ ops.transpose2d(k)) * scale) if scale > 1 else ops.softmax(q @ ops.transpose2d(k), axis=1)
    return scores @ v


def masked_mean(guarded: bool, ops: Any, x: Any, keep: Any) -> Any:
    m = ops.cast(keep, dtype="float32")
    count = ops.reduce_sum(m, axis=1)
    return ops.reduce_sum(x * m, axis=1) / (ops.maximum(count, 1.0) if guarded else count)


def logit(eps: float, ops: Any, p: Any) -> Any:
    p = ops.clamp(p, lo=eps, hi=1 - eps) if eps else p
    return ops.log(p) - ops.log1p(-p)


def logsumexp(shifted: bool, ops: Any, x: Any) -> Any:
    top = peak(ops, x)
    return (ops.log(rows(ops, ops.exp(x - top))) + top) if shifted else ops.log(rows(ops, ops.exp(x)))


def chosen(mask: Program, f: Program, inside: bool, ops: Any, x: Any) -> Any:
    """f where a mask holds, of what f has a value of, or of all."""
    holds, one = mask(ops, x), full(ops, x, 1.0)
    return ops.select(holds, f(ops, ops.select(holds, x, one) if inside else x), 0 * x)


def _acos_of_tanh(ops: Any, x: Any) -> Any:
    return ops.acos(ops.tanh(x))


TWINS: dict[str, Twins] = {
    # Losses
    "cross-entropy": Twins(
        lambda ops, x: -ops.log_softmax(x, axis=1), lambda ops, x: -ops.log(ops.softmax(x, axis=1)), (HUNDRED,)
    ),
    "reciprocal of a softmax": _of(lambda eps, ops, x: 1 / (ops.softmax(x, axis=1) + eps), 1e-6, 0.0, HUNDRED),
    "log of a sigmoid": Twins(lambda ops, x: ops.log_sigmoid(x), lambda ops, x: ops.log(ops.sigmoid(x)), (HUNDRED,)),
    "log of a bell": Twins(lambda ops, x: -(x * x), lambda ops, x: ops.log(ops.exp(-(x * x))), (TEN,)),
    "log of a narrow bell": _of(lambda c, ops, x: ops.log(ops.exp(-c * x * x)), 1, 4, spec(-9, 9)),
    "binary cross-entropy": _of(
        lambda eps, ops, p, y: -(y * ops.log(p + eps) + (1 - y) * ops.log(1 - p + eps)), 1e-7, 0.0, UNIT, UNIT
    ),
    "focal loss": _of(lambda eps, ops, p: -((1 - p) ** 2) * ops.log(p + eps), 1e-7, 0.0, UNIT),
    "dice": _of(dice, 1.0, 0.0, UNIT, UNIT),
    "hinge": _inverse(lambda ops, x, y: ops.relu(1 - x * y), SIGNED, SIGNED),
    "huber": Twins(
        lambda ops, x: ops.select(ops.abs(x) < 1.0, 0.5 * x * x, ops.abs(x) - 0.5),
        lambda ops, x: ops.sqrt(ops.select(ops.abs(x) < 1.0, 0.5 * x * x, ops.abs(x) - 1.5)),
        (TEN,),
    ),
    "log cosh": Twins(
        lambda ops, x: ops.abs(x) + ops.softplus(-2.0 * ops.abs(x)) - math.log(2),
        lambda ops, x: ops.log(ops.cosh(x)),
        (HUNDRED,),
    ),
    "smoothed labels": Twins(
        lambda ops, x: ops.reduce_mean(-ops.log_softmax(x, axis=1), axis=1),
        lambda ops, x: ops.reduce_mean(-ops.log(1 - ops.softmax(x, axis=1)), axis=1),
        (TEN,),
    ),
    "poisson": Twins(lambda ops, x, y: ops.exp(x) - y * x, lambda ops, x, y: ops.exp(x * x) - y * x, (TEN, UNIT)),
    "gaussian likelihood": _of(gaussian, 1e-6, 0.0, TEN, TEN, UNIT),
    "gaussian by log deviation": _of(lambda c, ops, x, s: 0.5 * x * x * ops.exp(c * s) + s, -2, -20, TEN, TEN),
    "divergence of gaussians": Twins(
        lambda ops, m, s: 0.5 * ops.reduce_sum(ops.exp(s) + m * m - 1 - s, axis=1),
        lambda ops, m, s: 0.5 * ops.reduce_sum(ops.exp(s * s) + m * m - 1 - s, axis=1),
        (TEN, TEN),
    ),
    "divergence of shares": Twins(
        lambda ops, p, q: p * (ops.log(ops.maximum(p, 1e-8)) - ops.log(ops.maximum(q, 1e-8))),
        lambda ops, p, q: p * (ops.log(p) - ops.log(q)),
        (UNIT, UNIT),
    ),
    "jensen-shannon": _of(lambda eps, ops, p, q: -0.5 * (p + q) * ops.log(0.5 * (p + q) + eps), 1e-9, 0.0, UNIT, UNIT),
    "entropy with clamps": _of(
        lambda low, ops, p: -ops.reduce_sum(p * ops.log(ops.clamp(p, lo=low, hi=1.0)), axis=1), 1e-12, 0.0, UNIT
    ),
    "entropy where positive": Twins(
        lambda ops, p: -ops.reduce_sum(p * ops.log(ops.select(p > 0, p, full(ops, p, 1.0))), axis=1),
        lambda ops, p: -ops.reduce_sum(p * ops.log(ops.select(p > 0.5, full(ops, p, 1.0), p)), axis=1),
        (UNIT,),
    ),
    "logits": _of(logit, 1e-6, 0.0, UNIT),
    "log-sum-exp": _of(logsumexp, True, False, HUNDRED),
    "softplus by hand": Twins(
        lambda ops, x: ops.maximum(x, 0.0) + ops.log1p(ops.exp(-ops.abs(x))),
        lambda ops, x: ops.log(1 + ops.exp(x)),
        (HUNDRED,),
    ),
    "survival": _of(lambda f, ops, x: getattr(ops, f)(1 - ops.exp(-x)), "sqrt", "log", spec(0, 50)),
    # Norms and statistics
    "z score": _of(z_score, 1e-5, 0.0, TEN),
    "length with eps": _of(lambda eps, ops, x: x / ops.sqrt(rows(ops, x * x) + eps), 1e-12, 0.0, TEN),
    "norm": _inverse(lambda ops, x: derived.norm(ops, x, axis=1), TEN),
    "norm of large numbers": Twins(
        lambda ops, x: derived.norm(ops, x, axis=1), lambda ops, x: ops.sqrt(ops.reduce_sum(x * x, axis=1)), (LARGE,)
    ),
    "unit rows": _of(lambda eps, ops, x: x / (derived.norm(ops, x, axis=1, keepdims=True) + eps), 1e-6, 0.0, TEN),
    "rows by magnitude": Twins(
        lambda ops, x: ops.sqrt(2 - x / ops.maximum(peak(ops, ops.abs(x)), 1e-20)),
        lambda ops, x: x / peak(ops, ops.abs(x)),
        (TEN,),
    ),
    "rows by their sum of magnitudes": Twins(
        lambda ops, x: ops.sqrt(2 - x / (rows(ops, ops.abs(x)) + 1e-20)),
        lambda ops, x: x / rows(ops, ops.abs(x)),
        (TEN,),
    ),
    "range of rows": _of(
        lambda eps, ops, x: (x + 10) / (peak(ops, x) - ops.reduce_min(x, axis=1, keepdims=True) + eps), 1e-6, 0.0, TEN
    ),
    "deviation": _inverse(lambda ops, x: derived.std(ops, x, axis=1), TEN),
    "variance": Twins(
        lambda ops, x: ops.reduce_mean(centred(ops, x) ** 2, axis=1),
        lambda ops, x: ops.sqrt(ops.reduce_mean(x * x, axis=1) - ops.reduce_mean(x, axis=1) ** 2),
        (TEN,),
    ),
    "mean over a named size": Twins(
        lambda ops, x: ops.reduce_sum(x, axis=0) / x.shape[0],
        lambda ops, x: ops.reduce_sum(x, axis=0) / (x.shape[0] - ops.full(shape=(8,), value=1.0)),
        (TEN,),
    ),
    "log of a mean's share": _of(lambda c, ops, x: ops.log(full(ops, x, 1.0) / x.shape[0] + c * x), 1, -1, UNIT),
    "sample variance": _inverse(lambda ops, x: derived.var(ops, x, axis=0), TWO_ROWS),
    "sample variance by hand": _of(
        lambda c, ops, x: ops.reduce_sum(centred(ops, x) ** 2, axis=0) / (x.shape[0] - c), 1, 2, TWO_ROWS
    ),
    "gumbel": _of(lambda eps, ops, u: -ops.log(-ops.log(u + 1e-10) + eps), 1e-10, 0.0, UNIT),
    "log of a raised complement": _of(lambda c, ops, x: ops.log1p(c - x), 1e-7, 1e-9, UNIT),
    "log of a complement to more than 1": _of(lambda c, ops, x: ops.log(c - x), 1 + 1e-6, 1 + 1e-8, UNIT),
    "mean of large numbers": Twins(
        lambda ops, x: ops.reduce_mean(ops.slice(x, axis=1, start=0, length=3), axis=1),
        lambda ops, x: ops.reduce_mean(x, axis=0),
        (spec(0, 1e38),),
    ),
    "masked mean": _of(masked_mean, True, False, TEN, KEEP),
    "root of a complement": _of(lambda c, ops, x: ops.sqrt(c - x), 1, 0.999, UNIT),
    "root of a mean's complement": _of(
        lambda f, ops, x: getattr(ops, f)(1 - ops.reduce_mean(x, axis=1)), "sqrt", "log", UNIT
    ),
    "root of a sum's complement": _of(lambda c, ops, x: ops.sqrt(c - ops.reduce_sum(x, axis=1)), 8, 7, UNIT),
    "root of a square's complement": _inverse(lambda ops, x: ops.sqrt(1 - x * x), SIGNED),
    "root of a tanh's complement": _of(lambda f, ops, x: getattr(ops, f)(1 - ops.tanh(x) ** 2), "sqrt", "log", TEN),
    # Attention and distances
    "attention": _of(attention, 1.0, 2.0, *QKV),
    "fused attention": _inverse(lambda ops, q, k, v: ops.scaled_dot_product_attention(q, k, v), *QKV),
    "distance": _inverse(lambda ops, x, y: ops.sqrt(rows(ops, (x - y) * (x - y))), TEN, TEN),
    "gradient of a distance": _of(
        lambda eps, *given: slope(lambda ops, x, y: ops.sqrt(rows(ops, (x - y) * (x - y)) + eps), *given),
        1e-6,
        0.0,
        TEN,
        TEN,
    ),
    "cosine": _of(cosine, 1e-8, 0.0, TEN, TEN),
    "kernel": _of(lambda c, ops, x, y: ops.exp(c * rows(ops, (x - y) * (x - y))), -0.5, 0.5, TEN, TEN),
    "inverse distance": _of(lambda eps, ops, x, y: 1 / (ops.abs(x - y) + eps), 1e-3, 0.0, TEN, TEN),
    "temperature": _of(lambda eps, ops, x, t: ops.softmax(x / (t + eps), axis=1), 0.01, 0.0, TEN, UNIT),
    # Angles
    "acos": _of(lambda c, ops, x: ops.acos(c * x), 1, 1.01, SIGNED),
    "asin": Twins(lambda ops, x: ops.asin(x), lambda ops, x: ops.asin(x + 0.01), (SIGNED,)),
    "angle of a cosine": Twins(
        lambda ops, x, y: ops.acos(ops.clamp(cosine(1e-8, ops, x, y), lo=-1.0, hi=1.0)),
        lambda ops, x, y: ops.acos(cosine(1e-8, ops, x, y)),
        (TEN, TEN),
    ),
    "acos of a tanh": Twins(_acos_of_tanh, partial(slope, _acos_of_tanh), (TEN,)),
    "atan2": Twins(lambda ops, y, x: ops.atan2(y, x), lambda ops, y, x: ops.atan(y / x), (SIGNED, SIGNED)),
    "gradient of atan2": _of(
        lambda c, *given: slope(lambda ops, y, x: ops.atan2(y, x - c), *given), 0, 1, SIGNED, spec(0.1, 1)
    ),
    "tan": _of(lambda c, ops, x: ops.tan(c * x), 1, 2, SIGNED),
    "projection": _of(lambda f, ops, x: getattr(ops, f)(x) / getattr(ops, f)(0.5 * x), "cos", "sin", SIGNED),
    "haversine": _of(haversine, True, False, SIGNED, SIGNED),
    "polar": _of(lambda f, ops, x, y: ops.atan2(y, x) + getattr(ops, f)(x * x + y * y), "sqrt", "log", TEN, TEN),
    "atanh": _of(lambda c, ops, x: ops.atanh(c * x), 0.999, 1, SIGNED),
    "acosh": _of(lambda c, ops, x: ops.acosh(c + x), 1, 0, spec(0, 10)),
    "asinh": _of(lambda f, ops, x: getattr(ops, f)(x), "asinh", "sinh", HUNDRED),
    # Powers, products, whole numbers
    "power": _of(lambda c, ops, x, y: ops.power(x, c * y), 1, -1, UNIT, UNIT),
    "power of what is positive": _of(lambda c, ops, x, y: ops.power(x + c, y), 1, -0.5, UNIT, TEN),
    "large power": _of(lambda c, ops, x, y: ops.power(x, c * y), 0.1, 1, spec(1, 10), spec(0, 100)),
    "gamma correction": _of(lambda n, ops, x: ops.pow(x, exponent=n), 1 / 2.2, -1 / 2.2, UNIT),
    "mod": _of(lambda c, ops, x, y: ops.mod(x, y + c), 2, 1, TEN, SIGNED),
    "product": _of(lambda c, ops, x: ops.reduce_prod(c * x, axis=1), 1, 1e6, SIGNED),
    "transmittance": Twins(
        lambda ops, x: ops.cumprod(1 - x + 1e-10, axis=1), lambda ops, x: 1 / ops.cumprod(1 - x, axis=1), (UNIT,)
    ),
    "floor division": _of(lambda c, ops, x, y: ops.floor_divide(x, y + c), 1, 0, COUNTS, COUNTS),
    "whole remainder": _of(lambda c, ops, x, y: ops.mod(x, y + c), 1, 0, COUNTS, COUNTS),
    "quantised": _of(lambda c, ops, x: ops.cast(ops.round(x * c), dtype="int32"), 127, 1e10, SIGNED),
    # Choices
    "log where positive": _of(partial(chosen, lambda ops, x: x > 0, lambda ops, x: ops.log(x)), True, False, SIGNED),
    "sinc of what is not negative": _of(
        partial(chosen, lambda ops, x: x > 1e-6, lambda ops, x: ops.sin(x) / x), True, False, spec(0, 10)
    ),
    # Relations of a tensor with itself and its rows
    "root of half a square": Twins(
        lambda ops, x: ops.sqrt(0.5 * x * x), lambda ops, x: ops.sqrt(0.5 * x * ops.sin(x)), (TEN,)
    ),
    "median": _inverse(lambda ops, x: derived.median(ops, x, axis=1), TEN),
    "gradient of a product": _of(
        lambda c, *given: slope(lambda ops, x: ops.reduce_prod(c * x, axis=1), *given), 1, 1e6, SIGNED
    ),
    "rows from 0 to 1": _of(
        lambda f, ops, x: getattr(ops, f)(x - ops.reduce_min(x, axis=1, keepdims=True)), "sqrt", "log", TEN
    ),
    "log of a normal distribution": _of(lambda eps, ops, x: ops.log(0.5 * (1 + ops.erf(x)) + eps), 1e-7, 0.0, TEN),
    "capsule": _of(
        lambda eps, ops, x: rows(ops, x * x) / (1 + rows(ops, x * x)) * x / ops.sqrt(rows(ops, x * x) + eps),
        1e-9,
        0.0,
        TEN,
    ),
    "intersection over union": _of(
        lambda eps, ops, p, t: rows(ops, p * t) / (rows(ops, p) + rows(ops, t) + eps), 1e-6, 0.0, UNIT, UNIT
    ),
    "hyperbolic distance": _of(
        lambda c, ops, x: ops.acosh(1 + rows(ops, x * x) / (1 - c * rows(ops, x * x))), 0.01, 1, SIGNED
    ),
}
