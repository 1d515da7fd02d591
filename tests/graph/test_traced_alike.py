"""A check and a recording trace a program alike: one graph, in the same words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Spec, optim
from opstage.interpreters.graph import Graph
from opstage.models import MODELS, model
from opstage.ops.derived import dropout
from opstage.training.program_check import record_model


def text_of(graph: Graph, lines: dict[int, Any] | None = None) -> str:
    """Of tensors numbered in order."""
    return str(graph.with_body(graph.body.replace(lines=lines).renumbered()))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_step_of_a_shipped_model(name: str) -> None:
    made, options = model(name), opstage.Options()
    optimizer = optim.SHIPPED["adamw"].of_all()
    report = opstage.check_step(
        made.loss, made.init, *made.batch, optimizer=optimizer, state=made.state, options=options
    )
    recorded = record_model(made, options, optimizer)
    assert text_of(report.graph, {}) == text_of(recorded, {})  # its lines are those that called for it


def drawn(ops: Any, params: Any, x: Any) -> Any:
    """Random bits, a loop, constants of its own, and an op that leads to nothing."""
    x = dropout(ops, x, p=0.5, train=True)
    ops.exp(x)
    weights = ops.const(np.arange(4.0))

    def turn(inner: Any, carry: Any, row: Any) -> tuple[Any, Any]:
        return carry + row * params["w"], carry

    total, ys = ops.scan(turn, weights * 0.0, x * weights)
    return {"total": ops.sum(total), "ys": ys}


def test_a_program_of_ones_own() -> None:
    specs = {"w": Spec("4")}, Spec("B 4", where=["B >= 2"])
    report = opstage.check(drawn, *specs)
    assert report.ok, report
    assert text_of(report.graph) == text_of(opstage.record(drawn, *specs))
    assert report.graph.output_names == ("output.total", "output.ys")


def test_sizes_stand_in_it() -> None:
    specs = {"w": Spec("4")}, Spec("B 4", where=["B >= 2"])
    there = opstage.check(drawn, *specs).at(B=3).graph
    concrete = opstage.record(drawn, {"w": Spec("4")}, Spec("3 4"))
    assert text_of(there) == text_of(concrete)


def test_a_program_with_errors_has_none() -> None:
    report = opstage.check(lambda ops, x, y: ops.matmul(x, y), Spec("2 3"), Spec("2 3"))
    with pytest.raises(opstage.UsageError, match="a program with errors has no graph"):
        _ = report.graph
