"""Random programs: what is proved of them holds when they run; and wrong rules are caught by the same test."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.facts import Causal, Claim, Independent, prove
from opstage.facts.dependence import Dependence
from opstage.ops.catalogue import attention, layout, reduction, sequence

B, T, D = 3, 4, 2
X = np.random.default_rng(1).normal(size=(B, T, D))
SPEC = Spec("B T 2", where=("B >= 1", "T >= 1"))
CLAIMS: list[tuple[Claim, int]] = [(Causal("T"), 1), (Independent("T"), 1), (Independent("B"), 0)]


def _mixed(ops: Any, x: Any) -> Any:
    """Normalised over groups of elements that no axis has."""
    b, t, d = x.shape
    return ops.reshape(ops.softmax(ops.reshape(x, shape=(b, d, t)), axis=2), shape=(b, t, d))


def _exchanged(ops: Any, x: Any) -> Any:
    return ops.permute(ops.softmax(ops.permute(x, axes=(1, 0, 2)), axis=0), axes=(1, 0, 2))


def _folded(ops: Any, x: Any) -> Any:
    b, t, d = x.shape
    return ops.reshape(ops.softmax(ops.reshape(x, shape=(b * t, d)), axis=1), shape=(b, t, d))


def _across(ops: Any, x: Any) -> Any:
    return ops.permute(
        ops.scaled_dot_product_attention(*[ops.permute(x, axes=(1, 0, 2))] * 3, causal=True), axes=(1, 0, 2)
    )


STEPS: list[Callable[[Any, Any], Any]] = [
    lambda ops, x: ops.tanh(x),
    lambda ops, x: ops.softmax(x, axis=0),
    lambda ops, x: ops.softmax(x, axis=1),
    lambda ops, x: ops.softmax(x, axis=2),
    lambda ops, x: ops.layer_norm(x),
    lambda ops, x: ops.scaled_dot_product_attention(x, x, x, causal=True),
    lambda ops, x: ops.scaled_dot_product_attention(x, x, x),
    lambda ops, x: ops.cumsum(x, axis=1),
    _mixed,
    _folded,
    _across,
    _exchanged,
]


def _program(steps: Sequence[int]) -> Callable[[Any, Any], Any]:
    def program(ops: Any, x: Any) -> Any:
        for step in steps:
            x = ops.add(x, STEPS[step](ops, x))
        return x

    return program


def _moves(program: Callable[[Any, Any], Any], axis: int) -> set[tuple[int, int]]:
    """Every (t, s) for which the output at t changes bitwise with the input at s."""
    options = Options(dtype="float64")
    first, found = opstage.run(program, X, options=options), set()
    for s in range(X.shape[axis]):
        moved = X.copy()
        np.moveaxis(moved, axis, 0)[s] += [0.7, -1.1]
        after = opstage.run(program, moved, options=options)
        found |= {(t, s) for t in range(X.shape[axis]) if not np.array_equal(first.take(t, axis), after.take(t, axis))}
    return found


def _wrong_proofs(cases: Sequence[Sequence[int]]) -> int:
    wrong = 0
    for steps in cases:
        program = _program(steps)
        verdicts = prove(program, SPEC, claims=[claim for claim, _ in CLAIMS])
        for verdict, (claim, axis) in zip(verdicts, CLAIMS):
            if verdict.state == "proved":
                wrong += any(claim.breaks(s, t) for t, s in _moves(program, axis))
    return wrong


ONE_STEP = [[step] for step in range(len(STEPS))]


def test_no_proof_is_wrong() -> None:
    draw = random.Random(0)
    assert _wrong_proofs([*ONE_STEP, *([draw.randrange(len(STEPS)) for _ in range(3)] for _ in range(40))]) == 0


def _identity(domain: Any, call: Any, facts: Any) -> Any:
    return [facts[0]] * len(call.outputs)


def _flipped(domain: Any, call: Any, facts: Any) -> Any:
    """Reads by the axis that comes first, whichever it was."""
    reads = tuple([(call.static["axes"][0], span) for _, span in facts[0].reads])
    return [facts[0]._replace(axes=tuple([(size,) for size in call.outputs[0].shape]), reads=reads)]


@pytest.mark.parametrize(
    ("op", "wrong"),
    [
        (reduction.SOFTMAX, _identity),
        (attention.SCALED_DOT_PRODUCT_ATTENTION, _identity),
        (layout.PERMUTE, _flipped),
        (sequence.CUMSUM, _identity),
    ],
    ids=str,
)
def test_a_wrong_rule_is_caught(op: Any, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dependence, "rules", {**Dependence.rules, op: wrong})
    assert _wrong_proofs(ONE_STEP) > 0
