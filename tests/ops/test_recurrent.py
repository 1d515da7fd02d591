"""Recurrent layers and CTC beside loops in NumPy: of named sizes, of lengths, whatever padding holds."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived
from opstage.ops.errors import OpstageError, ShapeError
from tests.ops.functions import COMPILED, FLOAT64, Row, assert_row

T, B, INPUTS, H = 4, 3, 2, 3


def sigma(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def plain(w: Any, u: Any, h: Any, x: Any) -> Any:
    return (np.tanh(x @ w.T + h[0] @ u.T),)


def gated(w: Any, u: Any, state: Any, x: Any) -> Any:
    (h,) = state
    r, z = (sigma(x @ w[i * H : (i + 1) * H].T + h @ u[i * H : (i + 1) * H].T) for i in (0, 1))
    n = np.tanh(x @ w[2 * H :].T + r * (h @ u[2 * H :].T))
    return ((1 - z) * n + z * h,)


def remembering(w: Any, u: Any, state: Any, x: Any) -> Any:
    h, c = state
    i, f, g, o = np.split(x @ w.T + h @ u.T, 4, axis=1)
    c = sigma(f) * c + sigma(i) * np.tanh(g)
    return sigma(o) * np.tanh(c), c


LAYERS: dict[str, tuple[Any, Callable[..., Any], int, int]] = {
    "rnn": (derived.rnn, plain, 1, 1),
    "gru": (derived.gru, gated, 3, 1),
    "lstm": (derived.lstm, remembering, 4, 2),
}


def looped(cell: Any, states: int, w: Any, u: Any, x: Any, lengths: Any = None, reverse: bool = False) -> Any:
    """Each sequence by itself, without its padding."""
    outputs, lasts = np.zeros((*x.shape[:2], H)), []
    for b in range(x.shape[1]):
        state = tuple(np.zeros((1, H)) for _ in range(states))
        steps = range(x.shape[0] if lengths is None else lengths[b])
        for t in reversed(steps) if reverse else steps:
            state = cell(w, u, state, x[t, b : b + 1])
            outputs[t, b] = state[0][0]
        lasts.append(state)
    last = tuple(np.concatenate([each[i] for each in lasts]) for i in range(states))
    return outputs, last if states > 1 else last[0]


def rows() -> list[Row]:
    found = []
    lengths = np.array([4, 0, 2])
    for name, (layer, cell, gates, states) in LAYERS.items():
        shapes = ((T, B, INPUTS), (gates * H, INPUTS), (gates * H, H))

        def call(ops: Any, x: Any, w: Any, u: Any, *n: Any, layer: Any = layer, reverse: bool = False) -> Any:
            lengths = n[0] if n else None
            return layer(ops, x, {"input": w, "recurrent": u}, lengths=lengths, reverse=reverse)

        def reference(x: Any, w: Any, u: Any, *n: Any, c: Any = cell, s: int = states, reverse: bool = False) -> Any:
            return looped(c, s, w, u, x, *n, reverse=reverse)

        def backward_call(*args: Any, call: Any = call) -> Any:
            return call(*args, reverse=True)

        def backward(*args: Any, reference: Any = reference) -> Any:
            return reference(*args, reverse=True)

        found += [
            Row(name, shapes, call, reference),
            Row(f"{name} reverse", shapes, backward_call, backward),
            Row(f"{name} of lengths", (*shapes, lengths), call, reference),
            Row(f"{name} of lengths, reverse", (*shapes, lengths), backward_call, backward),
        ]
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_layers(row: Row) -> None:
    assert_row(row)


def layer_of(name: str, seed: int = 0, **settings: Any) -> tuple[Any, dict[str, Any], Any]:
    layer, _, gates, _ = LAYERS[name]
    rng = np.random.default_rng(seed)
    params = {"input": rng.standard_normal((gates * H, INPUTS)), "recurrent": rng.standard_normal((gates * H, H))}
    call = lambda ops, params, x, *n: layer(ops, x, params, lengths=n[0] if n else None, **settings)  # noqa: E731
    return call, params, rng.standard_normal((T, B, INPUTS))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
def test_what_is_behind_the_end_is_not_read(name: str, options: Any) -> None:
    """nan in the padding reaches neither values nor gradients."""
    call, params, x = layer_of(name)
    lengths = np.array([4, 0, 2])
    bad = x.copy()
    bad[0:, 1], bad[2:, 2] = np.nan, np.inf

    def total(ops: Any, given: Any, n: Any) -> Any:
        y, last = call(ops, given["params"], given["x"], n)
        last = last[1] if isinstance(last, tuple) else last
        return ops.add(ops.sum(ops.mul(y, y)), ops.sum(last))

    clean, first = opstage.value_and_grad(total, {"params": params, "x": x}, lengths, options=options)
    same, second = opstage.value_and_grad(total, {"params": params, "x": bad}, lengths, options=options)
    assert clean == same
    for part in ("input", "recurrent"):
        np.testing.assert_array_equal(first["params"][part], second["params"][part])
    np.testing.assert_array_equal(first["x"], second["x"])
    assert not second["x"][:, 1].any() and not second["x"][2:, 2].any()


@pytest.mark.parametrize("name", LAYERS)
def test_named_sizes(name: str) -> None:
    call, params, _ = layer_of(name)
    report = opstage.check(lambda ops, p, x, n: call(ops, p, x, n), params, opstage.Spec("T B 2"),
                           opstage.Spec("B", dtype="int64"))  # fmt: skip
    assert report.ok, report
    assert str(report.outputs[0].shape) == f"(T, B, {H})"


@pytest.mark.parametrize("lengths", [[5, 1, 1], [-1, 1, 1]])
@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
def test_a_length_out_of_range_is_an_error(lengths: list[int], options: Any) -> None:
    call, params, x = layer_of("gru")
    with pytest.raises(OpstageError, match="index"):
        opstage.run(call, params, x, np.array(lengths), options=options)


def test_orders_of_gates_are_permutations_of_rows() -> None:
    for name, own, other in (("lstm", "ifgo", "iofg"), ("gru", "rzn", "zrn")):
        call, params, x = layer_of(name)
        moved, _, _ = layer_of(name, gates=other)
        order = np.concatenate([np.arange(H) + H * own.index(gate) for gate in other])
        shuffled = {key: value[order] for key, value in params.items()}
        expected = opstage.run(call, params, x, options=FLOAT64)[0]
        np.testing.assert_allclose(opstage.run(moved, shuffled, x, options=FLOAT64)[0], expected, rtol=1e-12)


def test_both_directions_are_two_layers() -> None:
    call, params, x = layer_of("lstm")
    back, others, _ = layer_of("lstm", seed=1, reverse=True)
    y, lasts = opstage.run(lambda ops, p, q, x: derived.bidirectional(ops, derived.lstm, x, p, q), params, others, x)
    (a, last), (b, first) = opstage.run(call, params, x), opstage.run(back, others, x)
    np.testing.assert_array_equal(y, np.concatenate([a, b], axis=2))
    np.testing.assert_array_equal(lasts, (last, first))


def run(layer: Any, params: dict[str, Any], x: Any = None, **settings: Any) -> Any:
    given = np.ones((T, B, INPUTS)) if x is None else x
    return opstage.run(lambda ops, x, p: layer(ops, x, p, **settings), given, params)


def weights(rows: int, inputs: int = INPUTS, hidden: int = H) -> dict[str, Any]:
    return {"input": np.ones((rows, inputs)), "recurrent": np.ones((rows, hidden))}


BAD = {
    "rank": (lambda: run(derived.rnn, weights(H), np.ones((T, INPUTS))), r"rnn .*x must be \(time, batch, inputs\)"),
    "rows": (lambda: run(derived.gru, weights(10)), r"gru .*its rows must be those of 3 gates"),
    "inputs": (lambda: run(derived.lstm, weights(12, 5)), r"lstm .*input must be \(12, 2\) but is \(12, 5\)"),
    "hidden": (lambda: run(derived.lstm, weights(12, 2, 4)), r"recurrent must be \(12, 3\) but is \(12, 4\)"),
    "misspelt": (lambda: run(derived.rnn, {**weights(H), "biases": np.ones(H)}), "have 'biases', which it does not"),
    "missing": (lambda: run(derived.rnn, {"input": np.ones((H, INPUTS))}), "lack 'recurrent'"),
    "bias": (lambda: run(derived.rnn, {**weights(H), "bias": np.ones(2)}), r"bias must be \(3,\) but is \(2,\)"),
    "gates": (lambda: run(derived.lstm, weights(12), gates="ifg"), "letters i, f, g and o in some order"),
    "order": (lambda: run(derived.gru, weights(9), gates="nzr"), 'gates must be "rzn" or "zrn"'),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_said(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ShapeError, match=message):
        call()


# Connectionist temporal classification --------------------------------------------------------------------------------


def enumerated(log_probs: Any, targets: Any, steps: Any, labels: Any, blank: int = 0) -> Any:
    """Each path through the classes by itself."""
    losses = []
    for b in range(log_probs.shape[1]):
        wanted, total = list(targets[b][: labels[b]]), 0.0
        for path in product(range(log_probs.shape[2]), repeat=int(steps[b])):
            joined = [c for i, c in enumerate(path) if i == 0 or c != path[i - 1]]
            if [c for c in joined if c != blank] == wanted:
                total += np.exp(sum(log_probs[t, b, c] for t, c in enumerate(path)))
        with np.errstate(divide="ignore"):
            losses.append(-np.log(total))
    return np.array(losses)


TARGETS = np.array([[1, 1], [2, 1], [1, 2], [2, -7], [-1, 99]])
STEPS, LABELS = np.array([4, 4, 1, 3, 2]), np.array([2, 2, 2, 1, 0])


def alignment(ops: Any, x: Any, *given: Any, **settings: Any) -> Any:
    given = given or tuple(ops.const(each) for each in (TARGETS, STEPS, LABELS))
    return derived.ctc_loss(ops, ops.log_softmax(x), *given, **settings)


def log_softmax(x: Any) -> Any:
    return x - np.log(np.exp(x).sum(axis=2, keepdims=True))


def without_infinity(losses: Any) -> Any:
    return np.where(np.isinf(losses), 0, losses)


CTC = [
    Row("none", ((4, 5, 3),), lambda ops, x: alignment(ops, x, reduction="none", zero_infinity=True),
        lambda x: without_infinity(enumerated(log_softmax(x), TARGETS, STEPS, LABELS))),
    Row("infinite", ((4, 5, 3),), lambda ops, x: alignment(ops, x, reduction="none"),
        lambda x: enumerated(log_softmax(x), TARGETS, STEPS, LABELS), gradient=False),
    Row("sum", ((4, 5, 3),), lambda ops, x: alignment(ops, x, reduction="sum", zero_infinity=True),
        lambda x: without_infinity(enumerated(log_softmax(x), TARGETS, STEPS, LABELS)).sum()),
    Row("mean", ((4, 5, 3),), lambda ops, x: alignment(ops, x, zero_infinity=True),
        lambda x: np.mean(without_infinity(enumerated(log_softmax(x), TARGETS, STEPS, LABELS)) / [2, 2, 2, 1, 1])),
    Row("another blank", ((3, 1, 3), np.array([[0, 1]]), np.array([3]), np.array([2])),
        lambda ops, x, *given: alignment(ops, x, *given, blank=2),
        lambda x, *given: (enumerated(log_softmax(x), *given, blank=2) / 2).mean()),
    Row("no labels", ((3, 2, 2), np.zeros((2, 0), int), np.array([3, 1]), np.array([0, 0])),
        lambda ops, x, *given: alignment(ops, x, *given, reduction="none"),
        lambda x, *given: enumerated(log_softmax(x), *given)),
    Row("no steps", ((0, 2, 2), np.array([[1], [1]]), np.array([0, 0]), np.array([0, 1])),
        lambda ops, x, *given: alignment(ops, x, *given, reduction="none"),
        lambda x, *given: np.array([0, np.inf]), gradient=False),
]  # fmt: skip


@pytest.mark.parametrize("row", CTC, ids=lambda row: row.name)
def test_ctc(row: Row) -> None:
    assert_row(row)


@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
def test_ctc_of_impossible_labels_and_padding(options: Any) -> None:
    """Labels that no alignment has give inf and a gradient of 0; what is behind the end is not read."""
    x = np.random.default_rng(3).standard_normal((4, 5, 3))
    x[1:, 2], x[3:, 3], x[2:, 4] = np.nan, np.inf, -np.inf

    def total(ops: Any, x: Any) -> Any:
        given = (ops.const(each) for each in (TARGETS, STEPS, LABELS))
        return derived.ctc_loss(ops, x, *given, reduction="sum")

    value, gradient = opstage.value_and_grad(total, x, options=options)
    assert value == np.inf and np.isfinite(gradient).all()
    assert not gradient[:, 2].any() and not gradient[3:, 3].any() and not gradient[2:, 4].any()
    assert gradient[:, 0].any() and gradient[:2, 4].any()


def test_ctc_of_probabilities_of_zero() -> None:
    x = np.log(np.array([[[0.0, 1.0]], [[1.0, 0.0]]]))
    given = (np.array([[1]]), np.array([2]), np.array([1]))
    value, gradient = opstage.value_and_grad(lambda ops, x, *n: derived.ctc_loss(ops, x, *n), x, *given)
    assert value == 0 and np.isfinite(gradient).all() and gradient[0, 0, 1] == gradient[1, 0, 0] == -1


def test_ctc_of_named_sizes() -> None:
    integers = (opstage.Spec(text, dtype="int64") for text in ("B S", "B", "B"))
    report = opstage.check(lambda ops, x, *n: derived.ctc_loss(ops, x, *n), opstage.Spec("T B 5"), *integers)
    assert report.ok, report


@pytest.mark.parametrize(
    ("targets", "steps", "labels"),
    [([[3]], [2], [1]), ([[-1]], [2], [1]), ([[1]], [3], [1]), ([[1]], [2], [2]), ([[1]], [2], [-1])],
)
@pytest.mark.parametrize("options", [FLOAT64, COMPILED], ids=["eager", "compiled"])
def test_ctc_out_of_range(targets: Any, steps: Any, labels: Any, options: Any) -> None:
    given = (np.array(each) for each in (targets, steps, labels))
    with pytest.raises(OpstageError, match="index"):
        opstage.run(lambda ops, x, *n: derived.ctc_loss(ops, x, *n), np.zeros((2, 1, 3)), *given, options=options)


@pytest.mark.parametrize(
    ("shape", "targets", "settings", "message"),
    [
        ((2, 1), [[1]], {}, r"log_probs must be floats \(time, batch, classes\)"),
        ((2, 1, 3), [1], {}, r"targets must be integers \(batch, labels\)"),
        ((2, 1, 3), [[1.0]], {}, "targets must be integers"),
        ((2, 2, 3), [[1]], {}, "log_probs are of 2 sequences, but targets of 1"),
        ((2, 1, 3), [[1]], {"blank": 3}, "blank is 3, which is none of 3 classes"),
        ((2, 1, 3), [[1]], {"reduction": "max"}, "reduction must be"),
    ],
)
def test_what_is_wrong_of_ctc_is_said(shape: Any, targets: Any, settings: Any, message: str) -> None:
    given = (np.array(each) for each in (targets, [2], [1]))
    with pytest.raises(ShapeError, match=f"ctc_loss .*{message}"):
        opstage.run(lambda ops, x, *n: derived.ctc_loss(ops, x, *n, **settings), np.zeros(shape), *given)
