"""Loops whose condition compares counters with bounds: as many iterations as onnxruntime makes, for every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from opstage.ops.errors import UnsupportedError
from tests.interop.onnx.models import load, model, node
from tests.interop.onnx.test_load import runtime, values

INT = TensorProto.INT64


def loop(condition: list[Any], *, start: int = 0, step: int = 1, trips: int | None = None, first: str = "true") -> Any:
    """x (n, 2) -> the sum of row `counter % n` and the stacked sums; `condition` makes "go" of i, old, new and n."""
    body = helper.make_graph(
        [
            node("Add", ["old", "step"], ["new"]),
            node("Mod", ["i", "n"], ["row"]),
            node("Gather", ["x", "row"], ["picked"], axis=0),
            node("Add", ["sum", "picked"], ["sum_out"]),
            node("Identity", ["sum_out"], ["stacked"]),
            node("Identity", ["bound"], ["bound_out"]),
            *condition,
        ],
        "body",
        [
            helper.make_tensor_value_info("i", INT, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("old", INT, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, [2]),
            helper.make_tensor_value_info("bound", INT, []),
        ],
        [helper.make_empty_tensor_value_info(name) for name in ("go", "new", "sum_out", "bound_out", "stacked")],
    )
    nodes = [
        node("Shape", ["x"], ["s"], start=0, end=1),
        node("Squeeze", ["s"], ["n"]),
        node(
            "Loop", ["trips" if trips is not None else "", first, "start", "zero", "n"], ["a", "y", "b", "z"], body=body
        ),
    ]
    weights = {"start": np.int64(start), "step": np.int64(step), "zero": np.zeros(2, np.float32), "true": np.True_,
               "two": np.int64(2), "trips": np.int64(trips or 0)}  # fmt: skip
    return model(nodes, {"x": ["N", 2]}, ["a", "y", "z"], weights)


def step(op: str, *names: str, out: str = "go", **attributes: Any) -> Any:
    return node(op, list(names), [out], **attributes)


ROWS: dict[str, Any] = {
    "new < n": loop([step("Less", "new", "bound")]),
    "old < n": loop([step("Less", "old", "bound")]),
    "i < n, from around": loop([step("Less", "i", "n")]),
    "new <= n": loop([step("LessOrEqual", "new", "bound")]),
    "n > new": loop([step("Greater", "bound", "new")]),
    "n >= new": loop([step("GreaterOrEqual", "bound", "new")]),
    "by two": loop([step("Less", "new", "bound")], step=2),
    "by three, before": loop([step("Less", "old", "bound")], step=3),
    "from far": loop([step("Less", "new", "bound")], start=2),
    "from below": loop([step("Less", "new", "bound")], start=-3),
    "a bound that moves": loop([step("Add", "i", "two", out="at"), step("Less", "new", "at")], step=2),
    "floats": loop([
        step("Cast", "new", out="f", to=1), step("Cast", "bound", out="g", to=1), step("Less", "f", "g"),
    ]),
    "both": loop([
        step("Less", "new", "bound", out="p"), step("Less", "i", "two", out="q"), step("And", "p", "q"),
    ]),
    "n - 2": loop([step("Sub", "bound", "two", out="at"), step("Less", "new", "at")]),
    "at most four": loop([step("Less", "new", "bound")], trips=4),
    "at most 2³¹ - 1": loop([step("Less", "new", "bound")], trips=2**31 - 1),
    "many, cast to bool": loop([step("Less", "old", "bound", out="p"), step("Cast", "p", to=9)], step=1),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_iterations_are_counted(name: str) -> None:
    proto = ROWS[name]
    loaded = load(proto)
    report = loaded.check()
    assert report.ok, report
    for rows in (1, 2, 5, 40):
        x = np.random.default_rng(rows).standard_normal((rows, 2)).astype(np.float32)
        expected = runtime(proto, x=x)
        for backend in ("eager", *(["compiled"] if rows == 5 else [])):
            for found, right in zip(values(loaded, x, backend=backend), expected):
                assert found.shape == right.shape, (rows, found.shape, right.shape)
                np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)


REFUSED: dict[str, Any] = {
    "values": [step("ReduceSum", "sum_out", out="t", keepdims=0), step("Less", "t", "t2")],
    "a counter of bytes": [
        step("Cast", "new", out="b", to=2), step("Cast", "b", out="c", to=7), step("Less", "c", "bound"),
    ],
    "a counter that is multiplied": [step("Mul", "new", "new", out="m"), step("Less", "m", "bound")],
    "unequal": [step("Equal", "new", "bound", out="e"), step("Not", "e")],
    "downwards": [step("Neg", "new", out="m"), step("Less", "m", "bound")],
    "one of two": [step("Less", "new", "bound", out="p"), step("Less", "i", "two", out="q"), step("Or", "p", "q")],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_conditions_have_no_count(name: str) -> None:
    """What such loops stack has no shape that is known; nothing is guessed."""
    condition = REFUSED[name]
    if name == "values":
        condition = [condition[0], step("Cast", "bound", out="t2", to=1), condition[1]]
    with pytest.raises(UnsupportedError, match="as many rows as it has iterations"):
        load(loop(condition))
