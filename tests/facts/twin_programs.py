"""Programs that people write, each safe in float32 for the ranges of its inputs, beside a twin that is not."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from opstage import Spec, derived, transform

Program = Callable[..., Any]


class Twins(NamedTuple):
    """Two programs of inputs of these Specs."""

    safe: Program
    unsafe: Program
    specs: tuple[Spec, ...]


def spec(low: float, high: float, shape: str = "B 8", **more: Any) -> Spec:
    return Spec(shape, range=(low, high), **more)


UNIT, SIGNED, TEN, HUNDRED = spec(0, 1), spec(-1, 1), spec(-10, 10), spec(-100, 100)
KEEP = Spec("B 8", dtype="bool")
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


def slope(loss: Program) -> Program:
    return lambda ops, x, *others: transform.grad(ops, lambda ops, x: ops.sum(loss(ops, x, *others)), x)


def z_score(eps: float) -> Program:
    def program(ops: Any, x: Any) -> Any:
        c = centred(ops, x)
        return c / ops.sqrt(ops.reduce_mean(c * c, axis=1, keepdims=True) + eps)

    return program


def cosine(eps: float) -> Program:
    def program(ops: Any, x: Any, y: Any) -> Any:
        lengths = ops.sqrt(rows(ops, x * x)) * ops.sqrt(rows(ops, y * y))
        return rows(ops, x * y) / (ops.maximum(lengths, eps) if eps else lengths)

    return program


def gaussian(eps: float) -> Program:
    """-log N(x; m, v)."""
    return lambda ops, x, m, v: 0.5 * (ops.log(v + eps) + (x - m) * (x - m) / (v + eps) + math.log(2 * math.pi))


def dice(smooth: float) -> Program:
    return lambda ops, p, t: (
        1
        - (2 * ops.reduce_sum(p * t, axis=1) + smooth)
        / (ops.reduce_sum(p, axis=1) + ops.reduce_sum(t, axis=1) + smooth)
    )


def haversine(guarded: bool) -> Program:
    def program(ops: Any, a: Any, b: Any) -> Any:
        s, t = ops.sin((a - b) * 0.5), ops.sin((a + b) * 0.5)
        h = s * s + ops.cos(a) * ops.cos(b) * t * t
        return 2 * ops.asin(ops.sqrt(ops.clamp(h, lo=0.0, hi=1.0) if guarded else h))

    return program


def attention(scale: float) -> Program:
    def program(ops: Any, q: Any, k: Any, v: Any) -> Any:
        scores = ops.exp((q @ ops.transpose2d(k)) * scale) if scale > 1 else ops.softmax(q @ ops.transpose2d(k), axis=1)
        return scores @ v

    return program


def focal(eps: float) -> Program:
    return lambda ops, p: -((1 - p) ** 2) * ops.log(p + eps)


def masked_mean(guarded: bool) -> Program:
    def program(ops: Any, x: Any, keep: Any) -> Any:
        m = ops.cast(keep, dtype="float32")
        count = ops.reduce_sum(m, axis=1)
        return ops.reduce_sum(x * m, axis=1) / (ops.maximum(count, 1.0) if guarded else count)

    return program


def logit(eps: float) -> Program:
    def program(ops: Any, p: Any) -> Any:
        p = ops.clamp(p, lo=eps, hi=1 - eps) if eps else p
        return ops.log(p) - ops.log1p(-p)

    return program


def logsumexp(shifted: bool) -> Program:
    def program(ops: Any, x: Any) -> Any:
        top = peak(ops, x)
        return (ops.log(rows(ops, ops.exp(x - top))) + top) if shifted else ops.log(rows(ops, ops.exp(x)))

    return program


def chosen(mask: Program, f: Program, inside: bool) -> Program:
    """f where a mask holds, of what f has a value of, or of all."""

    def program(ops: Any, x: Any) -> Any:
        holds, one = mask(ops, x), full(ops, x, 1.0)
        return ops.select(holds, f(ops, ops.select(holds, x, one) if inside else x), 0 * x)

    return program


TWINS: dict[str, Twins] = {
    # Losses
    "cross-entropy": Twins(
        lambda ops, x: -ops.log_softmax(x, axis=1), lambda ops, x: -ops.log(ops.softmax(x, axis=1)), (HUNDRED,)
    ),
    "reciprocal of a softmax": Twins(
        lambda ops, x: 1 / (ops.softmax(x, axis=1) + 1e-6), lambda ops, x: 1 / ops.softmax(x, axis=1), (HUNDRED,)
    ),
    "log of a sigmoid": Twins(lambda ops, x: ops.log_sigmoid(x), lambda ops, x: ops.log(ops.sigmoid(x)), (HUNDRED,)),
    "log of a bell": Twins(lambda ops, x: -(x * x), lambda ops, x: ops.log(ops.exp(-(x * x))), (TEN,)),
    "log of a narrow bell": Twins(
        lambda ops, x: ops.log(ops.exp(-(x * x))), lambda ops, x: ops.log(ops.exp(-4 * x * x)), (spec(-9, 9),)
    ),
    "binary cross-entropy": Twins(
        lambda ops, p, y: -(y * ops.log(p + 1e-7) + (1 - y) * ops.log(1 - p + 1e-7)),
        lambda ops, p, y: -(y * ops.log(p) + (1 - y) * ops.log(1 - p)),
        (UNIT, UNIT),
    ),
    "focal loss": Twins(focal(1e-7), focal(0.0), (UNIT,)),
    "dice": Twins(dice(1.0), dice(0.0), (UNIT, UNIT)),
    "hinge": Twins(lambda ops, x, y: ops.relu(1 - x * y), lambda ops, x, y: 1 / ops.relu(1 - x * y), (SIGNED, SIGNED)),
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
    "gaussian likelihood": Twins(gaussian(1e-6), gaussian(0.0), (TEN, TEN, UNIT)),
    "gaussian by log deviation": Twins(
        lambda ops, x, s: 0.5 * x * x * ops.exp(-2 * s) + s,
        lambda ops, x, s: 0.5 * x * x * ops.exp(-20 * s) + s,
        (TEN, TEN),
    ),
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
    "jensen-shannon": Twins(
        lambda ops, p, q: -0.5 * (p + q) * ops.log(0.5 * (p + q) + 1e-9),
        lambda ops, p, q: -0.5 * (p + q) * ops.log(0.5 * (p + q)),
        (UNIT, UNIT),
    ),
    "entropy with clamps": Twins(
        lambda ops, p: -ops.reduce_sum(p * ops.log(ops.clamp(p, lo=1e-12, hi=1.0)), axis=1),
        lambda ops, p: -ops.reduce_sum(p * ops.log(ops.clamp(p, lo=0.0, hi=1.0)), axis=1),
        (UNIT,),
    ),
    "entropy where positive": Twins(
        lambda ops, p: -ops.reduce_sum(p * ops.log(ops.select(p > 0, p, full(ops, p, 1.0))), axis=1),
        lambda ops, p: -ops.reduce_sum(p * ops.log(ops.select(p > 0.5, full(ops, p, 1.0), p)), axis=1),
        (UNIT,),
    ),
    "logits": Twins(logit(1e-6), logit(0.0), (UNIT,)),
    "log-sum-exp": Twins(logsumexp(True), logsumexp(False), (HUNDRED,)),
    "softplus by hand": Twins(
        lambda ops, x: ops.maximum(x, 0.0) + ops.log1p(ops.exp(-ops.abs(x))),
        lambda ops, x: ops.log(1 + ops.exp(x)),
        (HUNDRED,),
    ),
    "survival": Twins(
        lambda ops, x: ops.sqrt(1 - ops.exp(-x)), lambda ops, x: ops.log(1 - ops.exp(-x)), (spec(0, 50),)
    ),
    # Norms and statistics
    "z score": Twins(z_score(1e-5), z_score(0.0), (TEN,)),
    "length with eps": Twins(
        lambda ops, x: x / ops.sqrt(rows(ops, x * x) + 1e-12), lambda ops, x: x / ops.sqrt(rows(ops, x * x)), (TEN,)
    ),
    "norm": Twins(lambda ops, x: derived.norm(ops, x, axis=1), lambda ops, x: 1 / derived.norm(ops, x, axis=1), (TEN,)),
    "norm of large numbers": Twins(
        lambda ops, x: derived.norm(ops, x, axis=1), lambda ops, x: ops.sqrt(ops.reduce_sum(x * x, axis=1)), (LARGE,)
    ),
    "unit rows": Twins(
        lambda ops, x: x / (derived.norm(ops, x, axis=1, keepdims=True) + 1e-6),
        lambda ops, x: x / derived.norm(ops, x, axis=1, keepdims=True),
        (TEN,),
    ),
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
    "range of rows": Twins(
        lambda ops, x: (x + 10) / (peak(ops, x) - ops.reduce_min(x, axis=1, keepdims=True) + 1e-6),
        lambda ops, x: (x + 10) / (peak(ops, x) - ops.reduce_min(x, axis=1, keepdims=True)),
        (TEN,),
    ),
    "deviation": Twins(
        lambda ops, x: derived.std(ops, x, axis=1), lambda ops, x: 1 / derived.std(ops, x, axis=1), (TEN,)
    ),
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
    "log of a mean's share": Twins(
        lambda ops, x: ops.log(full(ops, x, 1.0) / x.shape[0] + x),
        lambda ops, x: ops.log(full(ops, x, 1.0) / x.shape[0] - x),
        (UNIT,),
    ),
    "sample variance": Twins(
        lambda ops, x: derived.var(ops, x, axis=0),
        lambda ops, x: 1 / derived.var(ops, x, axis=0),
        (spec(-10, 10, where=("B >= 2",)),),
    ),
    "sample variance by hand": Twins(
        lambda ops, x: ops.reduce_sum(centred(ops, x) ** 2, axis=0) / (x.shape[0] - 1),
        lambda ops, x: ops.reduce_sum(centred(ops, x) ** 2, axis=0) / (x.shape[0] - 2),
        (spec(-10, 10, where=("B >= 2",)),),
    ),
    "gumbel": Twins(
        lambda ops, u: -ops.log(-ops.log(u + 1e-10) + 1e-10), lambda ops, u: -ops.log(-ops.log(u + 1e-10)), (UNIT,)
    ),
    "log of a raised complement": Twins(
        lambda ops, x: ops.log1p(1e-7 - x), lambda ops, x: ops.log1p(1e-9 - x), (UNIT,)
    ),
    "log of a complement to more than 1": Twins(
        lambda ops, x: ops.log((1 + 1e-6) - x), lambda ops, x: ops.log((1 + 1e-8) - x), (UNIT,)
    ),
    "mean of large numbers": Twins(
        lambda ops, x: ops.reduce_mean(ops.slice(x, axis=1, start=0, length=3), axis=1),
        lambda ops, x: ops.reduce_mean(x, axis=0),
        (spec(0, 1e38),),
    ),
    "masked mean": Twins(masked_mean(True), masked_mean(False), (TEN, KEEP)),
    "root of a complement": Twins(lambda ops, x: ops.sqrt(1 - x), lambda ops, x: ops.sqrt(0.999 - x), (UNIT,)),
    "root of a mean's complement": Twins(
        lambda ops, x: ops.sqrt(1 - ops.reduce_mean(x, axis=1)),
        lambda ops, x: ops.log(1 - ops.reduce_mean(x, axis=1)),
        (UNIT,),
    ),
    "root of a sum's complement": Twins(
        lambda ops, x: ops.sqrt(8 - ops.reduce_sum(x, axis=1)),
        lambda ops, x: ops.sqrt(7 - ops.reduce_sum(x, axis=1)),
        (UNIT,),
    ),
    "root of a square's complement": Twins(
        lambda ops, x: ops.sqrt(1 - x * x), lambda ops, x: 1 / ops.sqrt(1 - x * x), (SIGNED,)
    ),
    "root of a tanh's complement": Twins(
        lambda ops, x: ops.sqrt(1 - ops.tanh(x) ** 2), lambda ops, x: ops.log(1 - ops.tanh(x) ** 2), (TEN,)
    ),
    # Attention and distances
    "attention": Twins(
        attention(1.0),
        attention(2.0),
        (Spec("T 8", range=(-10, 10)), Spec("S 8", range=(-10, 10)), Spec("S 8", range=(-10, 10))),
    ),
    "fused attention": Twins(
        lambda ops, q, k, v: ops.scaled_dot_product_attention(q, k, v),
        lambda ops, q, k, v: 1 / ops.scaled_dot_product_attention(q, k, v),
        (Spec("T 8", range=(-10, 10)), Spec("S 8", range=(-10, 10)), Spec("S 8", range=(-10, 10))),
    ),
    "distance": Twins(
        lambda ops, x, y: ops.sqrt(rows(ops, (x - y) * (x - y))),
        lambda ops, x, y: 1 / ops.sqrt(rows(ops, (x - y) * (x - y))),
        (TEN, TEN),
    ),
    "gradient of a distance": Twins(
        slope(lambda ops, x, y: ops.sqrt(rows(ops, (x - y) * (x - y)) + 1e-6)),
        slope(lambda ops, x, y: ops.sqrt(rows(ops, (x - y) * (x - y)))),
        (TEN, TEN),
    ),
    "cosine": Twins(cosine(1e-8), cosine(0.0), (TEN, TEN)),
    "kernel": Twins(
        lambda ops, x, y: ops.exp(-0.5 * rows(ops, (x - y) * (x - y))),
        lambda ops, x, y: ops.exp(0.5 * rows(ops, (x - y) * (x - y))),
        (TEN, TEN),
    ),
    "inverse distance": Twins(
        lambda ops, x, y: 1 / (ops.abs(x - y) + 1e-3), lambda ops, x, y: 1 / ops.abs(x - y), (TEN, TEN)
    ),
    "temperature": Twins(
        lambda ops, x, t: ops.softmax(x / (t + 0.01), axis=1), lambda ops, x, t: ops.softmax(x / t, axis=1), (TEN, UNIT)
    ),
    # Angles
    "acos": Twins(lambda ops, x: ops.acos(x), lambda ops, x: ops.acos(1.01 * x), (SIGNED,)),
    "asin": Twins(lambda ops, x: ops.asin(x), lambda ops, x: ops.asin(x + 0.01), (SIGNED,)),
    "angle of a cosine": Twins(
        lambda ops, x, y: ops.acos(ops.clamp(cosine(1e-8)(ops, x, y), lo=-1.0, hi=1.0)),
        lambda ops, x, y: ops.acos(cosine(1e-8)(ops, x, y)),
        (TEN, TEN),
    ),
    "acos of a tanh": Twins(lambda ops, x: ops.acos(ops.tanh(x)), slope(lambda ops, x: ops.acos(ops.tanh(x))), (TEN,)),
    "atan2": Twins(lambda ops, y, x: ops.atan2(y, x), lambda ops, y, x: ops.atan(y / x), (SIGNED, SIGNED)),
    "gradient of atan2": Twins(
        slope(lambda ops, y, x: ops.atan2(y, x)), slope(lambda ops, y, x: ops.atan2(y, x - 1)), (SIGNED, spec(0.1, 1))
    ),
    "tan": Twins(lambda ops, x: ops.tan(x), lambda ops, x: ops.tan(2 * x), (SIGNED,)),
    "projection": Twins(
        lambda ops, x: ops.cos(x) / ops.cos(0.5 * x), lambda ops, x: ops.sin(x) / ops.sin(0.5 * x), (SIGNED,)
    ),
    "haversine": Twins(haversine(True), haversine(False), (SIGNED, SIGNED)),
    "polar": Twins(
        lambda ops, x, y: ops.atan2(y, x) + ops.sqrt(x * x + y * y),
        lambda ops, x, y: ops.atan2(y, x) + ops.log(x * x + y * y),
        (TEN, TEN),
    ),
    "atanh": Twins(lambda ops, x: ops.atanh(0.999 * x), lambda ops, x: ops.atanh(x), (SIGNED,)),
    "acosh": Twins(lambda ops, x: ops.acosh(1 + x), lambda ops, x: ops.acosh(x), (spec(0, 10),)),
    "asinh": Twins(lambda ops, x: ops.asinh(x), lambda ops, x: ops.sinh(x), (HUNDRED,)),
    # Powers, products, whole numbers
    "power": Twins(lambda ops, x, y: ops.power(x, y), lambda ops, x, y: ops.power(x, -y), (UNIT, UNIT)),
    "power of what is positive": Twins(
        lambda ops, x, y: ops.power(x + 1, y), lambda ops, x, y: ops.power(x - 0.5, y), (UNIT, TEN)
    ),
    "large power": Twins(
        lambda ops, x, y: ops.power(x, 0.1 * y), lambda ops, x, y: ops.power(x, y), (spec(1, 10), spec(0, 100))
    ),
    "gamma correction": Twins(
        lambda ops, x: ops.pow(x, exponent=1 / 2.2), lambda ops, x: ops.pow(x, exponent=-1 / 2.2), (UNIT,)
    ),
    "mod": Twins(lambda ops, x, y: ops.mod(x, y + 2), lambda ops, x, y: ops.mod(x, y + 1), (TEN, SIGNED)),
    "product": Twins(
        lambda ops, x: ops.reduce_prod(x, axis=1), lambda ops, x: ops.reduce_prod(1e6 * x, axis=1), (SIGNED,)
    ),
    "transmittance": Twins(
        lambda ops, x: ops.cumprod(1 - x + 1e-10, axis=1), lambda ops, x: 1 / ops.cumprod(1 - x, axis=1), (UNIT,)
    ),
    "floor division": Twins(
        lambda ops, x, y: ops.floor_divide(x, y + 1), lambda ops, x, y: ops.floor_divide(x, y), (COUNTS, COUNTS)
    ),
    "whole remainder": Twins(lambda ops, x, y: ops.mod(x, y + 1), lambda ops, x, y: ops.mod(x, y), (COUNTS, COUNTS)),
    "quantised": Twins(
        lambda ops, x: ops.cast(ops.round(x * 127), dtype="int32"),
        lambda ops, x: ops.cast(ops.round(x * 1e10), dtype="int32"),
        (SIGNED,),
    ),
    # Choices
    "log where positive": Twins(
        chosen(lambda ops, x: x > 0, lambda ops, x: ops.log(x), True),
        chosen(lambda ops, x: x > 0, lambda ops, x: ops.log(x), False),
        (SIGNED,),
    ),
    "sinc of what is not negative": Twins(
        chosen(lambda ops, x: x > 1e-6, lambda ops, x: ops.sin(x) / x, True),
        chosen(lambda ops, x: x > 1e-6, lambda ops, x: ops.sin(x) / x, False),
        (spec(0, 10),),
    ),
    # Relations of a tensor with itself and its rows
    "root of half a square": Twins(
        lambda ops, x: ops.sqrt(0.5 * x * x), lambda ops, x: ops.sqrt(0.5 * x * ops.sin(x)), (TEN,)
    ),
    "median": Twins(
        lambda ops, x: derived.median(ops, x, axis=1), lambda ops, x: 1 / derived.median(ops, x, axis=1), (TEN,)
    ),
    "gradient of a product": Twins(
        slope(lambda ops, x: ops.reduce_prod(x, axis=1)),
        slope(lambda ops, x: ops.reduce_prod(1e6 * x, axis=1)),
        (SIGNED,),
    ),
    "rows from 0 to 1": Twins(
        lambda ops, x: ops.sqrt(x - ops.reduce_min(x, axis=1, keepdims=True)),
        lambda ops, x: ops.log(x - ops.reduce_min(x, axis=1, keepdims=True)),
        (TEN,),
    ),
    "log of a normal distribution": Twins(
        lambda ops, x: ops.log(0.5 * (1 + ops.erf(x)) + 1e-7), lambda ops, x: ops.log(0.5 * (1 + ops.erf(x))), (TEN,)
    ),
    "capsule": Twins(
        lambda ops, x: rows(ops, x * x) / (1 + rows(ops, x * x)) * x / ops.sqrt(rows(ops, x * x) + 1e-9),
        lambda ops, x: rows(ops, x * x) / (1 + rows(ops, x * x)) * x / ops.sqrt(rows(ops, x * x)),
        (TEN,),
    ),
    "intersection over union": Twins(
        lambda ops, p, t: rows(ops, p * t) / (rows(ops, p) + rows(ops, t) + 1e-6),
        lambda ops, p, t: rows(ops, p * t) / (rows(ops, p) + rows(ops, t)),
        (UNIT, UNIT),
    ),
    "hyperbolic distance": Twins(
        lambda ops, x: ops.acosh(1 + rows(ops, x * x) / (1 - 0.01 * rows(ops, x * x))),
        lambda ops, x: ops.acosh(1 + rows(ops, x * x) / (1 - rows(ops, x * x))),
        (SIGNED,),
    ),
}
