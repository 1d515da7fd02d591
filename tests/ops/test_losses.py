"""Losses made of plain ops against their definitions, a position at a time; derivatives by central differences."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.ops import derived
from opstage.ops.errors import OpstageError, RangeError, ShapeError

EAGER = Options(dtype="float64")
COMPILED = EAGER.replace(backend="compiled")
RNG = np.random.default_rng(0)


def reduced(values: Any, reduction: str, whole: Any = None) -> Any:
    values = np.asarray(values)
    if reduction == "none":
        return values
    total = values.sum()
    if reduction == "batchmean":
        return total / len(values)
    return total if reduction == "sum" else total / (values.size if whole is None else whole)


def cross_entropy(
    logits: Any, labels: Any, weight: Any, reduction: str = "mean", ignore_index: int = -100, label_smoothing: float = 0
) -> Any:
    rows = np.moveaxis(logits, 1 if logits.ndim > 1 else 0, -1)
    losses, whole = np.zeros(labels.shape), 0.0
    for place in np.ndindex(labels.shape):
        row, label = rows[place], labels[place]
        if label == ignore_index:
            continue
        logp = [v - math.log(sum(math.exp(u) for u in row)) for v in row]
        smooth = sum(w * p for w, p in zip(weight, logp)) * label_smoothing / len(row)
        losses[place] = -(1 - label_smoothing) * weight[label] * logp[label] - smooth
        whole += weight[label]
    return reduced(losses, reduction, whole)


def bce(x: Any, y: Any, weight: Any = 1.0, pos_weight: Any = 1.0, reduction: str = "mean") -> Any:
    p = 1 / (1 + np.exp(-x))
    return reduced(-(pos_weight * y * np.log(p) + (1 - y) * np.log(1 - p)) * weight, reduction)


def huber(x: Any, y: Any, delta: float = 1.0, reduction: str = "mean") -> Any:
    values = [d * d / 2 if d <= delta else delta * (d - delta / 2) for d in np.abs(x - y).ravel()]
    return reduced(np.reshape(values, x.shape), reduction)


def kl_div(x: Any, y: Any, log_target: bool = False, reduction: str = "mean") -> Any:
    target = np.exp(y) if log_target else y
    values = [t * (math.log(t) - v) if t else 0.0 for t, v in zip(target.ravel(), x.ravel())]
    return reduced(np.reshape(values, x.shape), reduction)


def cosine(x: Any, y: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    norms = [np.maximum(np.sqrt((v * v).sum(axis)), eps) for v in (x, y)]
    return (x * y).sum(axis) / (norms[0] * norms[1])


class Loss(NamedTuple):
    name: str
    args: tuple[Any, ...]
    reference: Callable[..., Any]
    static: dict[str, Any] = {}  # noqa: RUF012


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape)


def labels(*shape: int, ignored: dict[str, Any]) -> Any:
    """Classes, of which the first is ignored where there are several."""
    found = np.asarray(RNG.integers(0, 4, shape))
    if found.ndim:
        found.flat[0] = ignored.get("ignore_index", -100)
    return found


WEIGHT = np.array([0.5, 2.0, 0.0, 1.5])
SHARES = np.array([[0.2, 0.3, 0.5], [0.0, 1.0, 0.0]])
CASES = [
    *(
        Loss("weighted_cross_entropy", (normal(*shape), labels(*places, ignored=static), WEIGHT), cross_entropy, static)
        for shape, places in (((4,), ()), ((5, 4), (5,)), ((2, 4, 3), (2, 3)), ((2, 4, 2, 3), (2, 2, 3)))
        for static in (
            {},
            {"reduction": "none"},
            {"reduction": "sum", "label_smoothing": 0.3},
            {"label_smoothing": 0.1, "ignore_index": 1},
        )
        if places or "ignore_index" not in static
    ),
    *(
        Loss("binary_cross_entropy_with_logits", (normal(3, 2), RNG.uniform(size=(3, 2))), bce, {"reduction": r})
        for r in ("mean", "sum", "none")
    ),
    *(
        Loss("huber", (3 * normal(4, 3), normal(4, 3)), huber, {"delta": delta, "reduction": r})
        for delta, r in ((1.0, "mean"), (0.5, "sum"), (2, "none"))
    ),
    *(
        Loss("kl_div", (np.log(RNG.uniform(0.1, 1, (2, 3))), SHARES), kl_div, {"reduction": r})
        for r in ("mean", "sum", "none", "batchmean")
    ),
    Loss("kl_div", (normal(2, 3), normal(2, 3)), kl_div, {"log_target": True, "reduction": "batchmean"}),
    *(Loss("cosine_similarity", (normal(3, 4, 2), normal(3, 4, 2)), cosine, {"axis": a}) for a in (0, 1, -1)),
    Loss("cosine_similarity", (normal(3, 4), normal(3, 4)), cosine, {"eps": 3.0}),
]


def program(case: Loss) -> Callable[..., Any]:
    return lambda ops, *refs: getattr(derived, case.name)(ops, *refs, **case.static)


@pytest.mark.parametrize("options", [EAGER, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["eager", "compiled"])
@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.name}-{np.shape(c.args[0])}-{c.static}")
def test_values_and_derivatives(case: Loss, options: Options) -> None:
    expected = case.reference(*case.args, **case.static)
    moving = [i for i, a in enumerate(case.args) if a.dtype.kind == "f" and not (case.name == "kl_div" and i == 1)]
    weights = np.random.default_rng(1).normal(size=np.shape(expected))

    def scalar(ops: Any, *refs: Any) -> Any:
        return ops.sum(program(case)(ops, *refs) * ops.const(weights))

    np.testing.assert_allclose(opstage.run(program(case), *case.args, options=options), expected, rtol=1e-12)
    for i in moving:
        _, gradient = opstage.value_and_grad(scalar, *case.args, wrt=i, options=options)
        direction, h = np.random.default_rng(2).normal(size=case.args[i].shape), 1e-5

        def along(t: float, i: int = i, direction: Any = direction) -> tuple[Any, ...]:
            return (*case.args[:i], case.args[i] + t * direction, *case.args[i + 1 :])

        slope = [np.sum(weights * case.reference(*along(t), **case.static)) for t in (h, -h)]
        np.testing.assert_allclose(np.sum(gradient * direction), (slope[0] - slope[1]) / (2 * h), rtol=2e-6, atol=1e-8)
        tangents = tuple(direction if j == i else None for j in range(len(case.args)))
        curved = opstage.hvp(scalar, case.args, tangents, options=options)[i]
        ahead, behind = (opstage.value_and_grad(scalar, *along(t), wrt=i, options=EAGER)[1] for t in (h, -h))
        np.testing.assert_allclose(curved, (ahead - behind) / (2 * h), rtol=1e-4, atol=1e-6)


def test_weights_of_the_binary_loss_are_broadcast() -> None:
    x, y, w, p = normal(3, 2), RNG.uniform(size=(3, 2)), normal(3, 1), np.array([2.0, 0.5])
    for options in (EAGER, COMPILED):
        got = opstage.run(
            lambda ops, x, y, w, p: derived.binary_cross_entropy_with_logits(ops, x, y, weight=w, pos_weight=p),
            *(x, y, w, p),
            options=options,
        )
        np.testing.assert_allclose(got, bce(x, y, w, p), rtol=1e-12)


def test_large_logits_neither_overflow_nor_lose_their_gradient() -> None:
    x, y = np.array([1e4, -1e4, 1e4, -1e4]), np.array([1.0, 0.0, 0.0, 1.0])
    value, slope = opstage.value_and_grad(
        lambda ops, x, y: derived.binary_cross_entropy_with_logits(ops, x, y, reduction="sum"), x, y
    )
    assert value == 2e4
    np.testing.assert_array_equal(slope, [0, 0, 1, -1])
    value, slope = opstage.value_and_grad(
        lambda ops, x, y: derived.huber(ops, x, y, reduction="sum"), 1e30 * x[:2], x[:2]
    )
    assert np.isfinite(value)
    np.testing.assert_array_equal(slope, [1, -1])


def test_a_zero_vector_has_a_finite_gradient() -> None:
    x, y = np.zeros((1, 3)), np.array([[3.0, 0.0, 4.0]])
    value, slope = opstage.value_and_grad(
        lambda ops, x, y: ops.sum(derived.cosine_similarity(ops, x, y, eps=0.5)), x, y, options=EAGER
    )
    assert value == 0
    np.testing.assert_allclose(slope, y / 5 / 0.5, rtol=1e-15)


@pytest.mark.parametrize(
    ("error", "message", "call"),
    [
        (ShapeError, r"weight is \(5,\) .* one number per class, \(4,\)", (np.zeros(5), {})),
        (ShapeError, r"weight is \(1,\) .* one number per class", (np.zeros(1), {})),
        (ShapeError, r"weight is \(4, 1\)", (np.zeros((4, 1)), {})),
        (ShapeError, r"reduction must be one of .*did you mean 'mean'", (WEIGHT, {"reduction": "meen"})),
        (ShapeError, "label_smoothing must be a number from 0 to 1", (WEIGHT, {"label_smoothing": 2})),
    ],
)
def test_bad_weights(error: type[OpstageError], message: str, call: Any) -> None:
    weight, static = call
    args = (normal(3, 4), np.array([0, 1, 3]), weight)
    with pytest.raises(error, match=message):
        opstage.run(lambda ops, *refs: derived.weighted_cross_entropy(ops, *refs, **static), *args)


def test_a_label_out_of_range_is_an_error() -> None:
    for bad in (4, -1):
        with pytest.raises(RangeError):
            opstage.run(derived.weighted_cross_entropy, normal(2, 4), np.array([0, bad]), WEIGHT)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("delta must be a number above 0 but is 0", lambda ops, x: derived.huber(ops, x, x, delta=0)),
        ("reduction must be one of", lambda ops, x: derived.huber(ops, x, x, reduction="batchmean")),
        ("takes tensors with a batch axis", lambda ops, x: derived.kl_div(ops, x[0], x[0], reduction="batchmean")),
        ("eps must be a number", lambda ops, x: derived.cosine_similarity(ops, x, x, axis=0, eps=-1.0)),
        ("axis 1 is out of range", lambda ops, x: derived.cosine_similarity(ops, x, x)),
    ],
)
def test_bad_arguments(message: str, call: Any) -> None:
    with pytest.raises(ShapeError, match=message):
        opstage.run(call, np.ones(3))


def test_named_sizes() -> None:
    def loss(ops: Any, x: Any, y: Any, w: Any) -> Any:
        p = derived.kl_div(ops, ops.log_softmax(x), ops.softmax(x), reduction="batchmean")
        a = derived.weighted_cross_entropy(ops, x, y, w, label_smoothing=0.1)
        return a + p + derived.huber(ops, x, x) + ops.sum(derived.cosine_similarity(ops, x, x))

    report = opstage.check(loss, Spec("B C", where=["B >= 1", "C >= 1"]), Spec("B", dtype="int64"), Spec("C"))
    assert report.ok, report
    (error,) = opstage.check(derived.weighted_cross_entropy, Spec("B 4"), Spec("B", dtype="int64"), Spec("5")).errors
    assert "one number per class" in error.reason


def test_cross_entropy_takes_the_weight_of_each_class() -> None:
    rng = np.random.default_rng(0)
    logits, labels, weight = rng.normal(size=(6, 3)), np.array([0, 1, 2, 2, 1, -100]), np.array([0.5, 2.0, 3.0])
    options = Options(dtype="float64")
    found = opstage.run(lambda ops, z, y, w: ops.cross_entropy(z, y, weight=w), logits, labels, weight, options=options)
    own = opstage.run(lambda ops, z, y: ops.cross_entropy(z, y, reduction="none"), logits, labels, options=options)
    assert np.isclose(found, (own[:5] * weight[labels[:5]]).sum() / weight[labels[:5]].sum(), rtol=1e-14)
