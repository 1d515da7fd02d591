"""Loops whose condition compares counters with bounds: as many iterations as onnxruntime makes, for every size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import opstage
import opstage.onnx
from opstage.ops.errors import UnsupportedError
from tests.interop.onnx.models import model
from tests.interop.onnx.test_load import runtime, values

INT = TensorProto.INT64


def loop(condition: list[Any], *, start: int = 0, step: int = 1, trips: int | None = None, first: str = "true") -> Any:
    """x (n, 2) -> the sum of row `counter % n` and the stacked sums; `condition` makes "go" of i, old, new and n."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["old", "step"], ["new"]),
            helper.make_node("Mod", ["i", "n"], ["row"]),
            helper.make_node("Gather", ["x", "row"], ["picked"], axis=0),
            helper.make_node("Add", ["sum", "picked"], ["sum_out"]),
            helper.make_node("Identity", ["sum_out"], ["stacked"]),
            helper.make_node("Identity", ["bound"], ["bound_out"]),
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
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Squeeze", ["s"], ["n"]),
        helper.make_node(
            "Loop", ["trips" if trips is not None else "", first, "start", "zero", "n"], ["a", "y", "b", "z"], body=body
        ),
    ]
    weights = {"start": np.int64(start), "step": np.int64(step), "zero": np.zeros(2, np.float32), "true": np.True_,
               "two": np.int64(2), "trips": np.int64(trips or 0)}  # fmt: skip
    return model(nodes, {"x": ["N", 2]}, ["a", "y", "z"], weights)


def node(op: str, *names: str, out: str = "go", **attributes: Any) -> Any:
    return helper.make_node(op, list(names), [out], **attributes)


ROWS: dict[str, Any] = {
    "new < n": loop([node("Less", "new", "bound")]),
    "old < n": loop([node("Less", "old", "bound")]),
    "i < n, from around": loop([node("Less", "i", "n")]),
    "new <= n": loop([node("LessOrEqual", "new", "bound")]),
    "n > new": loop([node("Greater", "bound", "new")]),
    "n >= new": loop([node("GreaterOrEqual", "bound", "new")]),
    "by two": loop([node("Less", "new", "bound")], step=2),
    "by three, before": loop([node("Less", "old", "bound")], step=3),
    "from far": loop([node("Less", "new", "bound")], start=2),
    "from below": loop([node("Less", "new", "bound")], start=-3),
    "a bound that moves": loop([node("Add", "i", "two", out="at"), node("Less", "new", "at")], step=2),
    "floats": loop([
        node("Cast", "new", out="f", to=1), node("Cast", "bound", out="g", to=1), node("Less", "f", "g"),
    ]),
    "both": loop([
        node("Less", "new", "bound", out="p"), node("Less", "i", "two", out="q"), node("And", "p", "q"),
    ]),
    "n - 2": loop([node("Sub", "bound", "two", out="at"), node("Less", "new", "at")]),
    "at most four": loop([node("Less", "new", "bound")], trips=4),
    "at most 2³¹ - 1": loop([node("Less", "new", "bound")], trips=2**31 - 1),
    "many, cast to bool": loop([node("Less", "old", "bound", out="p"), node("Cast", "p", to=9)], step=1),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_iterations_are_counted(name: str) -> None:
    proto = ROWS[name]
    loaded = opstage.onnx.load(proto.SerializeToString())
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
    "values": [node("ReduceSum", "sum_out", out="t", keepdims=0), node("Less", "t", "t2")],
    "a counter of bytes": [
        node("Cast", "new", out="b", to=2), node("Cast", "b", out="c", to=7), node("Less", "c", "bound"),
    ],
    "a counter that is multiplied": [node("Mul", "new", "new", out="m"), node("Less", "m", "bound")],
    "unequal": [node("Equal", "new", "bound", out="e"), node("Not", "e")],
    "downwards": [node("Neg", "new", out="m"), node("Less", "m", "bound")],
    "one of two": [node("Less", "new", "bound", out="p"), node("Less", "i", "two", out="q"), node("Or", "p", "q")],
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_other_conditions_have_no_count(name: str) -> None:
    """What such loops stack has no shape that is known; nothing is guessed."""
    condition = REFUSED[name]
    if name == "values":
        condition = [condition[0], node("Cast", "bound", out="t2", to=1), condition[1]]
    with pytest.raises(UnsupportedError, match="as many rows as it has iterations"):
        opstage.onnx.load(loop(condition).SerializeToString())
