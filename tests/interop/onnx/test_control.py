"""If and Loop of imported models, by values and counted: the runtime's values, checked, compiled, differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import opstage
import opstage.onnx
from opstage import Options
from opstage.interop.onnx.export import model_of
from opstage.ops.errors import RangeError, UnsupportedError
from tests.interop.onnx.models import load, model, node
from tests.interop.onnx.test_load import runtime, values

X = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)


def subgraph(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: Any = None) -> Any:
    """A body; types are pairs (element type, shape)."""
    declared = [[helper.make_tensor_value_info(n, *t) for n, t in each.items()] for each in (inputs, outputs)]
    arrays = [numpy_helper.from_array(np.asarray(value), name) for name, value in (weights or {}).items()]
    return helper.make_graph(nodes, "body", *declared, arrays)


FLOATS = (TensorProto.FLOAT, ["n", 2])
SCALAR, COUNT, FLAG = (TensorProto.FLOAT, []), (TensorProto.INT64, []), (TensorProto.BOOL, [])
ITERATION = {"i": COUNT, "go": FLAG}


def branching() -> Any:
    """w·x where the sum is positive, else log(-x) and x as it is."""
    then = subgraph([node("Mul", ["x", "w"], ["t"]), node("Identity", ["t"], ["t2"])], {}, {"t": FLOATS, "t2": FLOATS})
    otherwise = subgraph(
        [node("Neg", ["x"], ["m"]), node("Log", ["m"], ["e"]), node("Identity", ["x"], ["e2"])],
        {},
        {"e": FLOATS, "e2": FLOATS},
    )
    nodes = [
        node("ReduceSum", ["x"], ["s"], keepdims=0),
        node("Greater", ["s", "zero"], ["positive"]),
        node("If", ["positive"], ["a", "b"], then_branch=then, else_branch=otherwise),
        node("Add", ["a", "b"], ["y"]),
    ]
    return model(nodes, {"x": ["n", 2]}, ["y"], {"w": np.array([2.0, 3.0], np.float32), "zero": np.float32(0.0)})


def halving(trips: str = "", *, stacked: bool = False) -> Any:
    """x ← x·w + 0.01 for as long as its sum is above 1, or so many times."""
    body = [
        node("Mul", ["c", "w"], ["h"]),
        node("Add", ["h", "tenth"], ["next"]),
        node("ReduceSum", ["next"], ["s"], keepdims=0),
        node("Greater", ["s", "one"], ["again"]),
        node("Identity", ["next"], ["row"]),
    ]
    outputs = {"again": FLAG, "next": FLOATS, **({"row": FLOATS} if stacked else {})}
    graph = subgraph(body, {**ITERATION, "c": FLOATS}, outputs)
    nodes = [
        node("ReduceSum", ["x"], ["s0"], keepdims=0),
        node("Greater", ["s0", "one"], ["begins"]),
        node("Loop", [trips, "begins", "x"], ["y", *(["rows"] if stacked else [])], body=graph),
    ]
    weights = {"w": np.array([0.5, 0.7], np.float32), "tenth": np.float32(0.01), "one": np.float32(1.0)}
    inputs: dict[str, Any] = {"x": ["n", 2]}
    if trips == "three":
        weights["three"] = np.array(3)
    if trips == "times":
        inputs["times"] = (TensorProto.INT64, [])
    return model(nodes, inputs, ["y", *(["rows"] if stacked else [])], weights)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_branch_is_chosen_by_value(backend: str) -> None:
    proto = branching()
    loaded = load(proto)
    assert loaded.check().ok
    for x in (np.abs(X), -np.abs(X), np.abs(X[:1])):
        np.testing.assert_allclose(values(loaded, x, backend=backend)[0], runtime(proto, x=x)[0], rtol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_the_gradient_is_that_of_the_branch(backend: Any) -> None:
    loaded = load(branching(), weights=["w"])

    def loss(ops: Any, params: Any, x: Any) -> Any:
        return ops.sum(loaded(ops, params, x)["y"])

    for sign, slope in ((1.0, 2 * np.abs(X).sum(0)), (-1.0, np.zeros(2))):  # where log(-x) is nan, w·x is chosen
        _, found = opstage.value_and_grad(loss, loaded.params, sign * np.abs(X), options=Options(backend=backend))
        np.testing.assert_allclose(found["w"], slope, rtol=1e-6)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("trips", ["", "three", "times"])
def test_a_loop_ends_by_a_value(trips: str, backend: str) -> None:
    proto = halving(trips)
    loaded = load(proto, max_iterations=50)
    assert loaded.check().ok
    for scale in (0.0, 1.0, 20.0):
        x = scale * np.abs(X)
        for times in (0, 1, 4) if trips == "times" else (None,):
            more = [] if times is None else [np.array(times)]
            given = {} if times is None else {"times": np.array(times)}
            found = values(loaded, x, *more, backend=backend)[0]
            np.testing.assert_allclose(found, runtime(proto, x=x, **given)[0], rtol=1e-5)


def test_a_loop_has_gradients_with_a_bound_and_says_so_without() -> None:
    x = 20 * np.abs(X)
    options = Options(dtype="float64")

    def slopes(loaded: Any) -> Any:
        def loss(ops: Any, params: Any) -> Any:
            return ops.sum(loaded(ops, params, ops.const(x))["y"])

        return opstage.value_and_grad(loss, loaded.params, options=options)[1]["w"]

    def plain(w: Any) -> Any:
        c = np.float64(x)
        while c.sum() > 1:
            c = c * w + np.float64(np.float32(0.01))
        return c.sum()

    proto = halving().SerializeToString()
    w = np.float64(np.array([0.5, 0.7], np.float32))
    found = slopes(opstage.onnx.load(proto, weights=["w"], max_iterations=30))
    steps = np.eye(2) * 1e-6
    np.testing.assert_allclose(found, [(plain(w + d) - plain(w - d)) / 2e-6 for d in steps], rtol=1e-6)
    with pytest.raises(UnsupportedError, match="give max_iterations="):
        slopes(opstage.onnx.load(proto, weights=["w"]))
    with pytest.raises(RangeError, match="after max_iterations=2 iterations"):
        slopes(opstage.onnx.load(proto, weights=["w"], max_iterations=2))


def test_what_has_no_meaning_is_said_once() -> None:
    with pytest.raises(UnsupportedError, match="as many rows as it has iterations"):
        load(halving(stacked=True))

    body = subgraph(
        [node("Identity", ["go"], ["again"]), node("Neg", ["c"], ["d"])],
        {**ITERATION, "c": FLOATS},
        {"again": FLAG, "d": FLOATS},
    )
    endless = model([node("Loop", ["", "", "x"], ["y"], body=body)], {"x": ["n", 2]}, ["y"])
    with pytest.raises(UnsupportedError, match="nothing ends the loop"):
        load(endless)

    then = subgraph([node("Unheard", ["x"], ["t"], domain="")], {}, {"t": FLOATS})
    otherwise = subgraph([node("ReduceSum", ["x"], ["e"], keepdims=0)], {}, {"e": SCALAR})
    sums = [node("ReduceSum", ["x"], ["s"], keepdims=0), node("Greater", ["s", "zero"], ["p"])]
    zero = {"zero": np.float32(0.0)}
    for branches in ((then, otherwise), (otherwise, then)):
        proto = model(
            [*sums, node("If", ["p"], ["y"], then_branch=branches[0], else_branch=branches[1])],
            {"x": ["n", 2]},
            ["y"],
            zero,
        )
        with pytest.raises(UnsupportedError) as caught:
            load(proto)
        assert str(caught.value).count("Unheard") == 1 and "sequence" not in str(caught.value)

    same = subgraph([node("Identity", ["x"], ["t"])], {}, {"t": FLOATS})
    proto = model(
        [*sums, node("If", ["p"], ["y"], then_branch=same, else_branch=otherwise)], {"x": ["n", 2]}, ["y"], zero
    )
    with pytest.raises(
        UnsupportedError, match=r"(?s)which branch is taken is not known .* float32 from true_fn but \(\)"
    ):
        load(proto)


@pytest.mark.parametrize("proto", [branching(), halving("times")], ids=["If", "Loop"])
def test_round_trips_keep_values(proto: Any) -> None:
    """In, out as If and Loop, and in again."""
    loaded = load(proto, max_iterations=9)

    def program(ops: Any, *given: Any) -> Any:
        return loaded(ops, {name: ops.const(value) for name, value in loaded.params.items()}, *given)

    written = model_of(opstage.record(program, *loaded.batch))
    again = load(written, max_iterations=9)
    for x in (20 * np.abs(X), -np.abs(X)):
        inputs = [x, np.array(4)][: len(loaded.inputs)]
        found = opstage.run(again, again.params, *inputs)
        np.testing.assert_allclose(next(iter(found.values())), values(loaded, *inputs)[0], rtol=1e-6)


# Loops whose condition compares counters with bounds ------------------------------------------------------------------

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
