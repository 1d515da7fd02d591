"""Numerical bugs of public studies, rebuilt from what the studies say of them, each beside its repair.

IPS-n   of GitHub, SO-n of Stack Overflow: Y. Zhang et al., "An Empirical Study on TensorFlow Program Bugs", ISSTA 2018.
        Those with wrong numbers are also the first benchmark of DEBAR: Y. Zhang et al., "Detecting Numerical Bugs in
        Neural Network Architectures", ESEC/FSE 2020
GRIST-n subject n of M. Yan et al., "Exposing Numerical Bugs in Deep Learning via Gradient Back-Propagation", ESEC/FSE
        2021, whose 63 subjects are RANUM's too: L. Li et al., "Reliability Assurance for Deep Neural Network
        Architectures against Numerical Defects", ICSE 2023
Others are of the same kinds, and known from the issues of many projects.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from opstage import Spec, derived

Program = Callable[..., Any]

X, Y, W = Spec("B 16", range=(0, 1)), Spec("B 10", range=(0, 1)), Spec("16 10")
LOGITS = (X, Y, W)
"""Data in [0, 1], one of ten classes as a row, and weights of which nothing is known."""


class Bug(NamedTuple):
    """subjects     of the studies that have the defect
    rule         the first rule that the buggy program breaks
    buggy, fixed programs of tensors of `specs`
    dtype        in which they are read
    """

    subjects: str
    rule: str
    buggy: Program
    fixed: Program
    specs: tuple[Spec, ...] = LOGITS
    dtype: str = "float32"


def _of(subjects: str, rule: str, program: Program, buggy: Any, fixed: Any, *more: Any) -> Bug:
    """A bug and its repair by one program, which takes first what tells them apart."""
    return Bug(subjects, rule, partial(program, buggy), partial(program, fixed), *more)


def _total(ops: Any, x: Any) -> Any:
    return ops.neg(ops.sum(x))


def _sum(ops: Any, x: Any) -> Any:
    return ops.reduce_sum(x, axis=1, keepdims=True)


def _shifted(ops: Any, z: Any) -> Any:
    e = ops.exp(z - ops.reduce_max(z, axis=1, keepdims=True))
    return e / _sum(ops, e)


def _softmax_by_hand(ops: Any, x: Any, y: Any, w: Any) -> Any:
    e = ops.exp(x @ w)
    return _total(ops, y * ops.log(e / _sum(ops, e) + 1e-6))


def _clipped_above(ops: Any, x: Any, y: Any, w: Any) -> Any:
    z = x @ w
    return _total(ops, y * ops.log(ops.exp(ops.clamp(z, lo=-80, hi=80)) / _sum(ops, ops.exp(z))))


def _clipped_both(ops: Any, x: Any, y: Any, w: Any) -> Any:
    e = ops.exp(ops.clamp(x @ w, lo=-80, hi=80))
    return _total(ops, y * ops.log(e / _sum(ops, e) + 1e-6))


def _crossed(log: Callable[[Any, Any], Any], ops: Any, x: Any, y: Any, w: Any) -> Any:
    """Binary cross-entropy of sigmoids, by that logarithm."""
    p = ops.sigmoid(x @ w)
    return _total(ops, y * log(ops, p) + (1 - y) * log(ops, 1 - p))


def _log(ops: Any, p: Any) -> Any:
    return ops.log(p)


def _log_of_softmax(ops: Any, z: Any, eps: float = 0.0) -> Any:
    p = ops.softmax(z, axis=1)
    return ops.log(p + eps if eps else p)


def _likelihood(log: Program, ops: Any, x: Any, y: Any, w: Any) -> Any:
    """The negative log-likelihood of classes, by that logarithm of their shares."""
    return _total(ops, y * log(ops, x @ w))


def _clipped_log(ops: Any, p: Any) -> Any:
    return ops.log(ops.clamp(p, lo=1e-6, hi=1))


def _drawn(scale: Callable[[Any, Any], Any], ops: Any, x: Any, noise: Any, w: Any) -> Any:
    """A sample of a variational autoencoder, whose deviation is exp of half of what a layer gives."""
    return ops.exp(ops.scale(scale(ops, x @ w), c=0.5)) * noise


def _divergence(bound: Callable[[Any, Any], Any], ops: Any, x: Any, y: Any, w: Any) -> Any:
    z = bound(ops, x @ w)
    return ops.sum(ops.exp(z) - z)


def _bounded(ops: Any, z: Any) -> Any:
    return ops.clamp(z, lo=-20, hi=20)


def _unbounded(ops: Any, z: Any) -> Any:
    return z


def _vanished(ops: Any, x: Any, y: Any, w: Any) -> Any:
    """1e-10 + 1 is 1 in float32."""
    return _total(ops, (1 - y) * ops.log((1e-10 + ops.full(shape=y.shape, value=1.0)) - ops.sigmoid(x @ w)))


def _kept(ops: Any, x: Any, y: Any, w: Any) -> Any:
    return _total(ops, (1 - y) * ops.log(ops.clamp(1 - ops.sigmoid(x @ w), lo=1e-6, hi=1)))


def _discriminator(eps: float, ops: Any, x: Any, y: Any, w: Any) -> Any:
    real, fake = ops.sigmoid(x @ w), ops.sigmoid(ops.neg(x @ w))
    return _total(ops, ops.log(real + eps) + ops.log(1 - fake + 1e-8))


def _scaled(eps: float, ops: Any, x: Any) -> Any:
    """Rows by their largest size."""
    return x / (ops.reduce_max(ops.abs(x), axis=1, keepdims=True) + eps)


def _direction(eps: float, ops: Any, x: Any) -> Any:
    return x / ops.sqrt(_sum(ops, x * x) + eps)


def _cosine(eps: float, ops: Any, x: Any, y: Any) -> Any:
    lengths = ops.sqrt(ops.reduce_sum(x * x, axis=1)) * ops.sqrt(ops.reduce_sum(y * y, axis=1))
    return ops.reduce_sum(x * y, axis=1) / (lengths + eps)


def _masked_mean(ops: Any, x: Any, mask: Any) -> Any:
    return ops.reduce_sum(x * mask, axis=1) / ops.reduce_sum(mask, axis=1)


def _masked_mean_of_one(ops: Any, x: Any, mask: Any) -> Any:
    count = ops.reduce_sum(mask, axis=1)
    return ops.reduce_sum(x * mask, axis=1) / ops.maximum(count, ops.full(shape=count.shape, value=1.0))


def _moments(ops: Any, x: Any) -> Any:
    return ops.sqrt(ops.reduce_mean(x * x, axis=1) - ops.reduce_mean(x, axis=1) ** 2 + 1e-5)


def _centred(ops: Any, x: Any) -> Any:
    centred = x - ops.reduce_mean(x, axis=1, keepdims=True)
    return ops.sqrt(ops.reduce_mean(centred * centred, axis=1) + 1e-5)


def _masked_by(value: float, ops: Any, x: Any, mask: Any) -> Any:
    """Scores that a softmax is to pass over."""
    return ops.softmax(x + (mask - 1) * value, axis=1)


def _degrees(eps: float, ops: Any, edges: Any) -> Any:
    """A graph's edges, by the roots of how many their ends have."""
    return edges / ops.sqrt(_sum(ops, edges) + eps)


BATCH, POSITIVE = (Spec("B 16", range=(-1, 1)),), (Spec("B 16", range=(0, 1)),)
PAIR = (Spec("B 16", range=(-1, 1)), Spec("B 16", range=(0, 1)))

BUGS: dict[str, Bug] = {
    "log of a softmax": _of(
        "IPS-1, IPS-9, SO-1, SO-2, SO-6, SO-14; GRIST-14, 18-21, 24, 25, 29, 30, 40-42, 44, 45, 48, 50, 52, 54-61",
        "log-of-zero",
        _likelihood,
        _log_of_softmax,
        lambda ops, z: ops.log_softmax(z, axis=1),
    ),
    "log of a softmax, clipped": _of(
        "GRIST-14, 21",
        "log-of-zero",
        _likelihood,
        _log_of_softmax,
        lambda ops, z: _clipped_log(ops, ops.softmax(z, axis=1)),
    ),
    "rows of a log of a softmax": _of(
        "GRIST-15, 23, 27, 32, 34, 46, 47",
        "log-of-zero",
        lambda eps, ops, x, y, w: ops.reduce_mean(-_sum(ops, y * _log_of_softmax(ops, x @ w, eps)), axis=(0, 1)),
        0.0,
        1e-6,
    ),
    "log of probabilities that come in": Bug(
        "GRIST-12",
        "log-of-zero",
        lambda ops, p, y: _total(ops, y * ops.log(p)),
        lambda ops, p, y: _total(ops, y * ops.safe_log(p, eps=1e-6)),
        (Y, Y),
    ),
    "log of a share of ranks": _of(
        "GRIST-5",
        "log-of-zero",
        lambda eps, ops, x, y, w: _total(ops, ops.log(_sum(ops, ops.softmax(x @ w, axis=1) * y) + eps)),
        0.0,
        1e-6,
    ),
    "cross-entropy of sigmoids": _of("IPS-6, SO-7; GRIST-33, 37, 38, 53", "log-of-zero", _crossed, _log, _clipped_log),
    "cross-entropy of sigmoids, by logits": Bug(
        "IPS-6; GRIST-37, 38",
        "log-of-zero",
        partial(_crossed, _log),
        lambda ops, x, y, w: derived.binary_cross_entropy_with_logits(ops, x @ w, y),
    ),
    "softmax by hand": Bug(
        "TensorFuzz; GRIST-11, 16, 13, 17",
        "overflow",
        _softmax_by_hand,
        lambda ops, x, y, w: _total(ops, y * ops.log(_shifted(ops, x @ w) + 1e-6)),
    ),
    "softmax by hand, half clipped": Bug("TensorFuzz; GRIST-11, 16", "overflow", _clipped_above, _clipped_both),
    "logistic function by hand": Bug(
        "GRIST-26, 33",
        "overflow",
        lambda ops, x, y, w: _total(ops, y * ops.log(1 / (1 + ops.exp(ops.neg(x @ w))))),
        lambda ops, x, y, w: _total(ops, y * ops.log_sigmoid(x @ w)),
    ),
    "softplus by hand": Bug(
        "GRIST-22, 51, 62, 63",
        "overflow",
        lambda ops, x, y, w: ops.sum(ops.log(1 + ops.exp(x @ w))),
        lambda ops, x, y, w: ops.sum(ops.softplus(x @ w)),
    ),
    "deviation of a layer": _of("GRIST-4, 35, 36, 39, 43, 49", "overflow", _drawn, _unbounded, _bounded, (X, Y, W)),
    "divergence of a layer": _of("GRIST-35, 36, 39, 43, 49", "overflow", _divergence, _unbounded, _bounded),
    "a number that vanishes beside 1": Bug("GRIST-35, 36, 39, 43, 49", "log-of-zero", _vanished, _kept),
    "adversary's log": _of("GRIST-31", "log-of-zero", _discriminator, 0.0, 1e-8),
    "rows by their largest size": _of("GRIST-28", "division-by-zero", _scaled, 0.0, 1e-7, BATCH),
    "rows by their length": _of("of many projects", "division-by-zero", _direction, 0.0, 1e-12, BATCH),
    "cosine": _of("of many projects", "division-by-zero", _cosine, 0.0, 1e-8, PAIR),
    "mean of what a mask leaves": Bug("of many projects", "division-by-zero", _masked_mean, _masked_mean_of_one, PAIR),
    "variance of moments": Bug("of many projects", "cancellation", _moments, _centred, BATCH),
    "edges by their degrees": _of("of many projects", "division-by-zero", _degrees, 0.0, 1e-6, POSITIVE),
    "logsumexp by hand": Bug(
        "of many projects",
        "overflow",
        lambda ops, x, y, w: ops.log(_sum(ops, ops.exp(x @ w))),
        lambda ops, x, y, w: derived.logsumexp(ops, x @ w, axis=1),
    ),
    "entropy of a softmax": _of(
        "of many projects",
        "log-of-zero",
        lambda log, ops, x, y, w: _total(ops, ops.softmax(x @ w, axis=1) * log(ops, x @ w)),
        _log_of_softmax,
        lambda ops, z: ops.log_softmax(z, axis=1),
    ),
    "a mask too large for float16": _of("of many projects", "overflow", _masked_by, 1e9, 1e4, PAIR, "float16"),
    "squares in float16": Bug(
        "of many projects",
        "overflow",
        lambda ops, x: ops.reduce_mean((x * 300) * (x * 300), axis=1),
        lambda ops, x: ops.reduce_mean(x * x, axis=1) * 2.0**6,
        BATCH,
        "float16",
    ),
    "an index of one more class": Bug(
        "of many projects",
        "index-out-of-range",
        lambda ops, table, index: ops.gather_rows(table, index),
        lambda ops, table, index: ops.gather_rows(table, index, mode="zero"),
        (Spec("10 4"), Spec("B", "int64", range=(0, 10))),
    ),
    "log that a select drops": Bug(
        "of many projects",
        "nan-behind-select",
        lambda ops, x: ops.select(x > 0, ops.log(x), 0 * x),
        lambda ops, x: ops.log(ops.select(x > 0.001, x, ops.full(shape=x.shape, value=1.0))),
        BATCH,
    ),
}
