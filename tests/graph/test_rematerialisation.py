"""What a declared rule computes again in the backward pass is not kept from the forward pass, compiled too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, transform
from opstage.interpreters.graph import Graph
from opstage.ops.dispatch import RULE
from opstage.training.memory import step_memory

DEPTH, WIDTH, HIDDEN, ROWS = 6, 16, 256, 512
KEPT = DEPTH * ROWS * HIDDEN * 4
"""The bytes of the hidden layers, which plain differentiation keeps."""


def block(ops: Any, x: Any, w: Any, v: Any) -> Any:
    return ops.matmul(ops.tanh(ops.matmul(x, w)), v)


lean = opstage.custom_vjp(block)


@lean.defvjp
def _(ops: Any, inputs: Any, outputs: Any, cotangents: Any) -> Any:
    return transform.vjp(ops, block, *inputs)[1](cotangents[0])


lean_op = opstage.custom_op(
    "lean_block",
    operands=("x", "w", "v"),
    shape=lambda x, w, v: x,
    decomposition=block,
    saves=("x", "w", "v"),
    vjp=lambda ops, ctx, cotangents: transform.vjp(ops, block, *ctx.saved)[1](cotangents[0]),
)


def loss(of: Any) -> Any:
    def program(ops: Any, params: Any, x: Any) -> Any:
        for w, v in params:
            x = of(ops, x, w, v)
        return ops.sum(x * x)

    return program


def parameters() -> Any:
    rng = np.random.default_rng(0)
    return [
        (rng.standard_normal((WIDTH, HIDDEN)) / WIDTH, rng.standard_normal((HIDDEN, WIDTH)) / WIDTH)
        for _ in range(DEPTH)
    ]


@pytest.mark.parametrize("of", [lean, lean_op], ids=["custom_vjp", "custom_op"])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_what_is_computed_again_is_not_kept(of: Any, backend: str) -> None:
    """Less than a third of the hidden layers is held at a time, as predicted, and by the plan that runs."""
    options = Options(backend=backend)
    plain, spared = (step_memory(loss(f), parameters(), Spec(f"B {WIDTH}"), options=options) for f in (block, of))
    assert plain.at(B=ROWS).peak - spared.at(B=ROWS).peak > KEPT / 2
    if backend == "compiled":
        assert plain.plan(B=ROWS).arena_bytes > KEPT
        assert spared.plan(B=ROWS).arena_bytes < KEPT / 2
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH))
    exact = Options(dtype="float64", backend=backend)
    ours, theirs = (opstage.value_and_grad(loss(f), parameters(), x, options=exact) for f in (of, block))
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)
    for a, b in zip(ours[1], theirs[1], strict=True):
        np.testing.assert_allclose(a[0], b[0], rtol=1e-9)
        np.testing.assert_allclose(a[1], b[1], rtol=1e-9)


def test_files_keep_the_mark(tmp_path: Path) -> None:
    """A graph that is read back from its text or from a file is optimised like the one that was written."""

    def gradient(ops: Any, x: Any, w: Any, v: Any) -> Any:
        return transform.grad(ops, lambda ops, x: ops.sum(lean_op(ops, x, w, v)), x)

    graph = opstage.record(gradient, Spec(f"4 {WIDTH}"), Spec(f"{WIDTH} 8"), Spec(f"8 {WIDTH}"))
    marks = [e.backward for e in graph.body.equations]
    assert RULE in marks and 0 in marks
    graph.save(tmp_path / "gradient.graph")
    for again in (Graph.parse(str(graph)), Graph.load(tmp_path / "gradient.graph")):
        assert [e.backward for e in again.body.equations] == marks
