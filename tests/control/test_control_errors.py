"""Branches and loops: what is refused, and what other parts of Opstage make of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import optree
import pytest
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import opstage
from opstage import Options, Spec, optim, scalar_trainer
from opstage.interpreters.graph import Graph
from opstage.ops.errors import DtypeError, ProgramError, RangeError, ShapeError
from opstage.ops.trees import flatten, unflatten
from opstage.training.memory import step_memory
from opstage.transforms.anomaly import AnomalyError
from tests.conformance.harness import is_float
from tests.control.control_programs import CASES, Case, Structural
from tests.graph.counting_allocator import Counted
from tests.graph.recorded import same_graphs
from tests.interop.onnx.runs import checked, operators, run_session, session_of

X = np.ones((2, 3), np.float32)


def said(program: Any, *args: Any, error: type[Exception] = ShapeError) -> str:
    with pytest.raises(error) as caught:
        opstage.run(program, *args)
    return str(caught.value)


def test_branches_of_other_shapes_show_both_with_their_lines() -> None:
    def program(ops: Any, x: Any) -> Any:
        def one(ops: Any) -> Any:
            return ops.sum(x)  # the one

        def other(ops: Any) -> Any:
            return ops.tanh(x)  # the other

        return ops.cond(ops.sum(x) > 0.0, one, other)

    with open(__file__) as file:
        lines = file.read().splitlines()
    one, other = (next(i for i, line in enumerate(lines, 1) if line.endswith(c)) for c in ("# the one", "# the other"))
    found = said(program, X)
    assert f"the result is () float32 from true_fn (tests/control/test_control_errors.py:{one})" in found
    assert f"but (2, 3) float32 from false_fn (tests/control/test_control_errors.py:{other})" in found
    assert found.startswith("cond at ")


def test_sizes_with_names_must_be_provably_equal() -> None:
    def program(ops: Any, x: Any, y: Any) -> Any:
        return ops.cond(ops.sum(x) > 0.0, lambda ops: x * 2.0, lambda ops: y)

    report = opstage.check(program, Spec("N 3"), Spec("M 3"))
    assert "(N, 3) float32 from true_fn" in str(report) and "(M, 3) float32 from false_fn" in str(report)
    assert 'add where=["M == N"]' in str(report)
    assert opstage.check(program, Spec("N 3"), Spec("N 3")).ok

    def halves(ops: Any, x: Any) -> Any:
        """Proved, not guessed: N + N is 2·N."""
        return ops.cond(
            ops.sum(x) > 0.0, lambda ops: ops.concat([x, x]), lambda ops: ops.full(shape=(2 * x.shape[0],), value=1.0)
        )

    assert opstage.check(halves, Spec("N")).ok


@pytest.mark.parametrize(
    ("program", "error", "message"),
    [
        (
            lambda ops, x: ops.cond(ops.sum(x) > 0.0, lambda ops: x, lambda ops: ops.cast(x, dtype="float64")),
            ShapeError,
            "cast one with ops.cast",
        ),
        (
            lambda ops, x: ops.cond(ops.sum(x) > 0.0, lambda ops: (x, x), lambda ops: x),
            ShapeError,
            "must give results built alike",
        ),
        (
            lambda ops, x: ops.cond(ops.sum(x), lambda ops: x, lambda ops: x),
            DtypeError,
            "pred must be a boolean scalar",
        ),
        (lambda ops, x: ops.cond(x > 0.0, lambda ops: x, lambda ops: x), ShapeError, "must be a scalar but is"),
        (lambda ops, x: ops.cond(ops.sum(x) > 0.0, x, lambda ops: x), ProgramError, "true_fn of a cond must be a func"),
        (lambda ops, x: ops.cond(ops.sum(x) > 0.0, lambda ops: (), lambda ops: ()), ShapeError, "at least one tensor"),
        (lambda ops, x: ops.cond(True, lambda ops: x, lambda ops: x), ProgramError, "ops.const"),
        (lambda ops, x: ops.switch(ops.sum(x) > 0.0, [lambda ops: x] * 2), DtypeError, "call ops.cond"),
        (lambda ops, x: ops.switch(ops.sum(x), [lambda ops: x] * 2), ShapeError, "chooses by an integer scalar"),
        (lambda ops, x: ops.switch(ops.argmax(x), []), ProgramError, "a tuple or list of functions"),
        (lambda ops, x: ops.switch(ops.const(0), lambda ops: x), ProgramError, "a tuple or list of functions"),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c), lambda ops, c: c, x),
            ShapeError,
            r"cond of a while_loop must give one boolean scalar, not \(\) float32",
        ),
        (lambda ops, x: ops.while_loop(lambda ops, c: c > 0.0, lambda ops, c: c, x), ShapeError, "one boolean scalar"),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: ops.sum(c), x),
            ShapeError,
            r"the carry comes into the body as \(2, 3\) float32 but leaves it as \(\) float32",
        ),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: (c, c), x),
            ShapeError,
            "a carry built like the one it gets",
        ),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(x) > 0.0, lambda ops, c: c, ()),
            ShapeError,
            "carries at least one tensor",
        ),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: c, x, max_iterations=-1),
            ShapeError,
            "max_iterations must be at least 0",
        ),
        (
            lambda ops, x: ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: c, x, max_iterations=1.5),
            ShapeError,
            "max_iterations",
        ),
        (lambda ops, x: ops.while_loop(True, lambda ops, c: c, x), ProgramError, "cond of a while_loop must be a func"),
    ],
)
def test_errors(program: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        opstage.run(program, X)


def test_ops_from_outside_and_refs_from_inside_are_refused() -> None:
    def outside(ops: Any, x: Any) -> Any:
        return ops.cond(ops.sum(x) > 0.0, lambda _: x, lambda inner: ops.tanh(inner.exp(x)))

    kept: list[Any] = []

    def inside(ops: Any, x: Any) -> Any:
        def branch(ops: Any) -> Any:
            kept.append(ops.exp(x))
            return kept[-1]

        return ops.cond(ops.sum(x) > 0.0, branch, branch) + kept[-1]

    for program, message in ((outside, "was used with ops from outside of it"), (inside, "after the body was traced")):
        with pytest.raises(ProgramError, match=message):
            opstage.run(program, X)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_an_error_in_a_branch_or_an_iteration_names_its_line(backend: Any) -> None:
    def program(ops: Any, x: Any, i: Any) -> Any:
        def looked_up(ops: Any) -> Any:
            return ops.gather_rows(x, i)  # here

        def body(ops: Any, c: Any) -> Any:
            return ops.cond(ops.sum(x) > 0.0, looked_up, lambda ops: c)

        return ops.while_loop(lambda ops, c: ops.sum(c) < 100.0, body, x, max_iterations=3)

    with open(__file__) as file:
        line = next(i for i, line in enumerate(file.read().splitlines(), 1) if line.endswith("# here"))
    with pytest.raises(RangeError) as caught:
        opstage.run(program, X, np.array([0, 7]), options=Options(backend=backend))
    assert f"test_control_errors.py:{line}" in str(caught.value)


# cond, switch and while_loop where programs are written down, exported, checked, predicted and trained ----------------

FLOAT64 = Options(dtype="float64")
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def with_gradients(case: Case) -> Any:
    """All outputs of a case, and the gradients of their sum."""

    def program(ops: Any, *args: Any) -> Any:
        def scalar(ops: Any, *args: Any) -> Any:
            total = ops.full(shape=(), value=0.0)
            for out in optree.tree_leaves(case.program(ops, Structural(), *args)):
                total = total + ops.sum(out) if out.dtype.kind == "f" else total
            return total

        pulled = ops.vjp_of(scalar, *args)[1](ops.const(1.0))
        return case.program(ops, Structural(), *args), [g for g in pulled if g is not None]

    return program


def recorded(case: Case) -> Graph:
    leaves, structure = flatten(case.args)
    specs = [
        Spec(" ".join(map(str, np.shape(x))), dtype=None if is_float(x) else str(np.asarray(x).dtype)) for x in leaves
    ]
    return opstage.record(with_gradients(case), *unflatten(structure, specs), options=FLOAT64)


# Written down --------------------------------------------------------------------------------------------------------


@each_case
def test_graphs_are_read_back(case: Case, tmp_path: Path) -> None:
    graph = recorded(case)
    same_graphs(Graph.parse(str(graph)), graph)
    graph.save(tmp_path / "one.graph")
    same_graphs(Graph.load(tmp_path / "one.graph"), graph)


@each_case
@pytest.mark.parametrize("optimized", [False, True])
def test_onnxruntime_gives_the_same(case: Case, optimized: bool) -> None:
    graph = recorded(case)
    found = run_session(session_of(checked(graph), optimized=optimized), graph, *case.args)
    expected = optree.tree_leaves(opstage.run(with_gradients(case), *case.args, options=FLOAT64))
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)  # its exp and tanh are not NumPy's


def test_in_onnx_a_choice_is_if_and_a_loop_is_loop_and_both_refuse() -> None:
    def program(ops: Any, x: Any, i: Any) -> Any:
        y = ops.switch(i, [lambda ops, k=k: x * float(k) for k in range(4)])
        return ops.while_loop(lambda ops, c: ops.sum(c) < 10.0, lambda ops, c: c * 2.0, y, max_iterations=2)

    graph = opstage.record(program, Spec("N"), Spec("", dtype="int32"))
    session = session_of(checked(graph), optimized=True)
    assert {"If", "Loop"} <= operators(checked(graph))
    np.testing.assert_array_equal(run_session(session, graph, np.array([1.0, 2.0]), 1)[0], [4.0, 8.0])
    np.testing.assert_array_equal(run_session(session, graph, np.ones(1), 3)[0], [12.0])
    for i in (4, -1, 1, 0):
        with pytest.raises(InvalidArgument, match="out of data bounds"):
            run_session(session, graph, np.ones(1), i)


# Checked and predicted -----------------------------------------------------------------------------------------------


def test_the_cost_is_that_of_the_dearest_branch_and_of_all_iterations() -> None:
    def choice(ops: Any, x: Any) -> Any:
        return ops.switch(ops.argmax(x), [lambda ops: x, lambda ops: ops.exp(ops.sin(x)), lambda ops: -x])

    def loop(ops: Any, x: Any) -> Any:
        return ops.while_loop(lambda ops, c: ops.sum(c) > 0.0, lambda ops, c: ops.sin(c), x, max_iterations=7)

    def flops(program: Any, *primitives: str) -> Any:
        body = opstage.check(program, Spec("N")).program.body
        (e,) = [e for e in body.equations if e.primitive.name in primitives]
        types = [tuple([body.types[slot] for slot in slots]) for slots in (e.inputs, e.outputs)]
        return str(e.primitive.cost(*types, e.static).flops)

    assert flops(choice, "switch") == "2*N"
    assert flops(loop, "while_loop") == "14*N + 14"  # a sum, a comparison, a sine, and the count


def test_memory_is_that_of_the_largest_branch() -> None:
    """Predicted for every size, and what an allocator counts where that branch runs."""

    def loss(ops: Any, w: Any, x: Any) -> Any:
        def large(ops: Any) -> Any:
            wide = ops.concat([x, x, x, x], axis=0)
            return ops.sum(ops.tanh(ops.sin(ops.linear(w, None, wide)) * 2.0))

        return ops.cond(ops.sum(x) > 0.0, large, lambda ops: ops.sum(x) * ops.sum(w))

    w, x = np.full((64, 64), 0.01, np.float32), np.ones((500, 64), np.float32)
    optimizer = optim.sgd(lr=0.1)
    options = Options(validate=False)
    predicted = step_memory(loss, w, Spec("B 64"), optimizer=optimizer, options=options).at(B=500).peak

    def measured(sign: float) -> int:
        trainer = scalar_trainer(loss, w, options=options)
        state = trainer.init_optim(optimizer)
        trainer.step_with(optimizer, state, sign * x)
        with Counted() as count:
            batch = sign * x
            state = trainer.init_optim(optimizer)
            trainer = scalar_trainer(loss, w, options=options)
            count.peak = count.live
            trainer.step_with(optimizer, state, batch)
            return count.peak

    assert measured(-1.0) < predicted / 3
    assert predicted == pytest.approx(measured(1.0), rel=0.1)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_training(backend: Any) -> None:
    """A step that is checked, recorded and committed as any other."""

    def loss(ops: Any, params: Any, x: Any) -> Any:
        h = ops.cond(
            ops.sum(x) > 0.0,
            lambda ops: ops.linear(params["one"], None, x),
            lambda ops: ops.linear(params["other"], None, x),
        )
        h = ops.while_loop(lambda ops, h: ops.sum(h * h) > 1.0, lambda ops, h: h * 0.5, h, max_iterations=20)
        return ops.sum((h - 0.3) * (h - 0.3))

    params = {name: np.full((1, 2), 0.5, np.float32) for name in ("one", "other")}
    trainer = scalar_trainer(loss, params, Spec("B 2"), options=Options(backend=backend))
    optimizer = optim.sgd(lr=0.05)
    state = trainer.init_optim(optimizer)
    x = np.array([[0.5, 0.25], [0.5, -0.5]], np.float32)
    losses = [float(trainer.advance(optimizer, state, x).loss) for _ in range(5)]
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]
    held = {name: param.value for name, param in trainer.params.items()}
    np.testing.assert_array_equal(held["other"], params["other"])  # a branch that never ran moves nothing
    assert not np.array_equal(held["one"], params["one"])


def test_the_anomaly_watch_sees_the_op_in_the_branch_and_in_the_iteration() -> None:
    def program(ops: Any, x: Any) -> Any:
        return ops.cond(ops.sum(x) < 0.0, lambda ops: ops.log(x), lambda ops: x)

    def loop(ops: Any, x: Any) -> Any:
        return ops.while_loop(lambda ops, c: ops.sum(c) > -9.0, lambda ops, c: ops.sqrt(c) - 2.0, x, max_iterations=9)

    options = Options(detect_anomaly=True)
    for each, op in ((program, "log"), (loop, "sqrt")):
        with pytest.raises(AnomalyError, match=f"{op} at .*{op} gave nan"):
            opstage.run(each, np.array([-1.0, -2.0]), options=options)
    opstage.run(program, np.array([1.0, 2.0]), options=options)


def test_a_session_chooses_and_loops() -> None:
    x = np.array([1.0, 2.0], np.float32)
    found = []
    for backend in ("eager", "compiled"):
        session: Any = opstage.Session(Options(backend=backend))  # type: ignore[arg-type]
        leaf = session.leaf(x)
        y = session.cond(session.sum(leaf) > 0.0, lambda ops: ops.exp(leaf), lambda ops: leaf)
        z = session.while_loop(lambda ops, c: ops.sum(c) < 50.0, lambda ops, c: c * 2.0, y, max_iterations=5)
        session.backward(session.sum(z))
        found.append(session.grad(leaf))
    np.testing.assert_allclose(found[0], np.exp(x) * 8, rtol=1e-6)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
