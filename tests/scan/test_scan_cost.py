"""What scan costs: checks of symbolic lengths, memory, and the equations of the bodies it derives."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any, final

import numpy as np
from typing_extensions import override

import opstage
from opstage import Options, Spec
from opstage.compiler.codegen.composites import hoisted
from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.eager_cpu import interpreter as eager_cpu
from opstage.interpreters.shape_check.interpreter import ShapeOps
from opstage.ops.body import Body
from opstage.ops.dims import evaluate as value_of
from opstage.ops.primitive import Primitive, Static
from opstage.transforms.derivatives import run_on_tape
from opstage.transforms.scan import SCAN
from opstage.transforms.tape import Record, Tape
from opstage.transforms.tracer import constants, evaluate
from opstage.transforms.transparent import Transparent
from tests.scan.scan_programs import CASES, cumulative_sum, rnn, scanned, unrolled

FLOAT64 = Options(dtype="float64")
CASE = {case.name: case for case in CASES}


def run(program: Callable[..., Any], *args: Any) -> Any:
    return opstage.run(program, *args, options=FLOAT64)


def add(ops: Any, total: Any, x: Any) -> Any:
    total = ops.add(total, x)
    return total, total


def zero(ops: Any) -> Any:
    return ops.full(shape=(), value=0.0)


# Checks --------------------------------------------------------------------------------------------------------------


def test_a_symbolic_length_is_checked_once() -> None:
    """The cost is the body's as often as T says, in the backward pass too; a concrete check agrees."""
    p, h, _ = CASE["rnn"].args

    def loss(ops: Any, p: Any, h: Any, xs: Any) -> Any:
        last, ys = rnn(ops, scanned, p, h, xs)
        return ops.add(ops.sum(last), ops.sum(ys))

    def gradient(ops: Any, p: Any, h: Any, xs: Any) -> Any:
        return opstage.transform.grad(ops, lambda ops, p: loss(ops, p, h, xs), p)

    for program in (loss, gradient):
        symbolic = opstage.check(program, p, h, Spec("T 4 2"), options=FLOAT64)
        assert symbolic.ok, str(symbolic)
        assert symbolic.conditions == ()
        for length in (1, 5, 1000):
            concrete = opstage.check(program, p, h, Spec((length, 4, 2)), options=FLOAT64)
            assert concrete.ok and concrete.ops == symbolic.ops  # however long
            for a, b in zip(symbolic.cost, concrete.cost):
                assert value_of(a, {"T": length}) == b
    assert opstage.check(loss, p, h, Spec("T 4 2"), options=FLOAT64).outputs.shape == ()
    ys = opstage.check(lambda ops, *args: rnn(ops, scanned, *args)[1], p, h, Spec("T 4 2"), options=FLOAT64).outputs
    assert str(ys) == "(T, 4, 3) float64"


def test_the_flops_of_a_loop_are_those_of_the_unrolled_one() -> None:
    case = CASE["rnn"]
    loop, plain = (opstage.check(case.of(how), *case.args, options=FLOAT64) for how in (scanned, unrolled))
    assert loop.cost.flops == plain.cost.flops


def test_a_check_goes_on_after_an_error_in_the_body() -> None:
    def program(ops: Any, w: Any, xs: Any) -> Any:
        def step(ops: Any, h: Any, x: Any) -> Any:
            return ops.tanh(ops.linear(w, None, x)), ops.exp(h)

        last, ys = ops.scan(step, ops.full(shape=(3,), value=0.0), xs)
        ops.add(ops.sum(ys), last)
        return ops.matmul(w, xs)

    report = opstage.check(program, Spec("3 4"), Spec("T 5"))
    assert [finding.op for finding in report.errors] == [
        "linear",
        "matmul",
    ]  # what follows from the first is not a finding
    assert report.errors[0].source is not None and "ops.linear(w" in report.errors[0].source.text


def test_a_carry_of_symbolic_shape() -> None:
    """It must keep its shape for every allowed size; a relation that is declared is enough."""

    def program(ops: Any, h: Any, w: Any) -> Any:
        return ops.scan(lambda ops, h, _: (ops.matmul(w, h), None), h, None, length=3)[0]

    report = opstage.check(program, Spec("M 1"), Spec("N M"))
    assert [finding.op for finding in report.errors] == ["scan"]
    assert "the carry comes into the body as (M, 1) float32 but leaves it as (N, 1)" in report.errors[0].reason
    assert opstage.check(program, Spec("M 1"), Spec("N M", where=["M == N"])).ok


def test_what_an_interpreter_cannot_compute_is_found_in_the_body() -> None:
    program = lambda ops, x: ops.scan(lambda ops, c, x: (ops.exp(ops.add(c, x)), None), zero(ops), x)[0]  # noqa: E731
    assert opstage.check(program, Spec("T")).ok
    report = opstage.check(program, Spec("T"), options=Options(dtype="exact"))
    assert [finding.op for finding in report.errors] == ["exp"]


# Memory --------------------------------------------------------------------------------------------------------------


def test_a_long_loop_holds_no_records_per_op() -> None:
    n, width = 10_000, 8

    def program(ops: Any, w: Any, xs: Any) -> Any:
        def cell(ops: Any, h: Any, x: Any) -> Any:
            return ops.tanh(ops.add(ops.mul(h, w), ops.sin(ops.exp(x)))), None

        return ops.sum(ops.scan(cell, ops.full(shape=(width,), value=0.0), xs)[0])

    w, xs = np.full(width, 0.5), np.zeros((n, width))
    ops = NumpyOps(FLOAT64)
    gc.collect()
    before = sum(type(o) is Record for o in gc.get_objects())
    tape, _, outputs, _ = run_on_tape(ops, program, (w, xs), (True, True))
    assert sum(type(o) is Record for o in gc.get_objects()) - before == 4  # two leaves, scan, sum
    record = outputs[0].record
    assert record is not None and record.parents[0] is not None
    scan = record.parents[0]
    assert scan.primitive is SCAN
    kept = {id(v.base if v.base is not None else v): v.nbytes for v in scan.saved if v is not None}
    assert sum(kept.values()) == xs.nbytes + w.nbytes + n * width * 8  # xs, what was captured, the carries
    del tape, outputs, record, scan
    opstage.value_and_grad(program, w, xs[:2], wrt=(0, 1), options=FLOAT64)  # what is imported then is not counted

    tracemalloc.start()
    try:
        opstage.value_and_grad(program, w, xs, wrt=(0, 1), options=FLOAT64)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * xs.nbytes  # the carries, the gradient and its copy; a residual per op would take several more


def test_without_a_gradient_no_carries_are_kept() -> None:
    def program(ops: Any, xs: Any) -> Any:
        return ops.scan(lambda ops, c, x: (ops.add(c, x), None), ops.full(shape=(1000,), value=0.0), xs)[0]

    xs = np.zeros((1000, 1000))
    tracemalloc.start()
    try:
        run(program, xs)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * xs.nbytes


def elman(ops: Any, w: Any, h: Any, xs: Any) -> Any:
    """The last state, and all of them; the weight is transposed in each turn."""

    def cell(ops: Any, h: Any, x: Any) -> Any:
        h = ops.tanh(ops.add(x, ops.matmul(h, ops.transpose2d(w))))
        return h, h

    return ops.scan(cell, h, xs)


def test_what_a_loop_with_a_product_keeps() -> None:
    """The incoming carries and what tanh's derivative reads, which the y's are already; nothing that turns share."""
    turns, batch, width = 6, 4, 3
    args = np.full((width, width), 0.5), np.zeros((batch, width)), np.ones((turns, batch, width))
    _, _, outputs, _ = run_on_tape(NumpyOps(FLOAT64), lambda ops, *a: ops.sum(elman(ops, *a)[1]), args, (True,) * 3)
    assert outputs[0].record is not None and outputs[0].record.parents[0] is not None
    scan = outputs[0].record.parents[0]
    assert scan.primitive is SCAN
    assert len(scan.outputs) == 3  # the carry, the y's, the incoming carries
    kept = {id(v.base if v.base is not None else v): v.nbytes for v in scan.saved if v is not None}
    assert sum(kept.values()) == args[0].nbytes + 2 * args[2].nbytes  # what was captured, carries, y's; no xs


def test_a_gradient_computes_no_product_anew() -> None:
    """One a turn forward, one backward, for the cotangent of the carry; that of the weight is one after the loop."""

    def loss(ops: Any, w: Any) -> Any:
        return ops.sum(elman(ops, w, ops.full(shape=(4, 3), value=0.0), ops.full(shape=(6, 4, 3), value=1.0))[0])

    bodies = bodies_of(lambda ops, w: (opstage.transform.grad(ops, loss, w),), np.full((3, 3), 0.5))
    assert [[str(e.primitive) for e in body.equations].count("matmul") for body in bodies] == [1, 1]
    assert "tanh" not in [str(e.primitive) for e in bodies[1].equations]
    assert [type_.shape for type_ in bodies[1].output_types] == [(4, 3), (4, 3)]  # no carry of the weight's shape


def test_what_no_turn_changes_is_computed_before_the_loop() -> None:
    """A product's transposed weight and exp of a captured tensor; not its broadcast, which costs a turn nothing."""

    def base(ops: Any, w: Any, b: Any, h: Any) -> tuple[Any, ...]:
        def cell(ops: Any, h: Any, _: Any) -> Any:
            shift = ops.broadcast_to(ops.exp(b), shape=h.shape)
            return ops.add(ops.matmul(h, ops.permute(w, axes=(1, 0))), shift), None

        return (ops.scan(cell, h, None, length=3)[0],)

    w, b, h = np.arange(9.0).reshape(3, 3), np.ones(3), np.ones((2, 3))
    (body,) = bodies_of(base, w, b, h)
    parts = hoisted(body, 1)
    assert parts is not None
    before, turn = parts
    assert sorted(str(e.primitive) for e in before.equations) == ["exp", "permute"]
    assert [str(e.primitive) for e in turn.equations] == ["broadcast_to", "matmul", "add"]
    ops = NumpyOps(FLOAT64)
    captured = (b, w) if body.input_types[1].shape == (3,) else (w, b)
    found = evaluate(ops, before, captured, constants(ops, before))
    (once,) = evaluate(ops, turn, (h, *captured, *found), constants(ops, turn))
    np.testing.assert_array_equal(once, h @ w.T + np.exp(b))
    assert hoisted(bodies_of(lambda ops, x: (cumulative_sum(ops, scanned, x)[0],), np.ones((4, 3)))[0], 2) is None


def test_bodies_are_forgotten() -> None:
    eager_cpu._INFERRED.clear()  # which it is when it is full
    program, args = CASE["nested"].of(scanned), CASE["nested"].args
    run(lambda ops, *args: ops.sum(program(ops, *args)[1]), *args)
    gc.collect()
    others = {id(o) for o in gc.get_objects() if type(o) is Body}  # of programs that were compiled, and are kept
    known = len(eager_cpu._INFERRED)
    for _ in range(3):
        opstage.value_and_grad(lambda ops, *args: ops.sum(program(ops, *args)[1]), *args, options=FLOAT64)
    first = len(eager_cpu._INFERRED)
    opstage.value_and_grad(lambda ops, *args: ops.sum(program(ops, *args)[1]), *args, options=FLOAT64)
    gc.collect()
    assert len(eager_cpu._INFERRED) == first >= known
    assert not [o for o in gc.get_objects() if type(o) is Body and id(o) not in others]


# Closed bodies -------------------------------------------------------------------------------------------------------


@final
class Recorder(Transparent[Any]):
    """Remembers the bodies of the scans that are bound."""

    __slots__ = ("bodies",)

    @override
    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        if primitive is SCAN:
            self.bodies.append(static["body"])
        return self.inner.bind(primitive, refs, static)


def bodies_of(base: Callable[..., Any], *args: Any) -> list[Body]:
    recorder = Recorder(NumpyOps(FLOAT64))
    recorder.bodies = []
    recorder.execute(base, tuple(np.asarray(a, dtype=np.float64) for a in args))
    return recorder.bodies


def test_a_body_that_reads_residuals_is_expanded_when_it_is_differentiated() -> None:
    """Traced where nobody differentiated, its inner gradient is fused; a tape that runs it later must take it apart."""

    def energy(ops: Any, x: Any) -> Any:
        y = ops.layer_norm(x, None, None)
        return ops.sum(ops.mul(y, ops.mul(y, y)))

    def base(ops: Any, x: Any) -> tuple[Any, ...]:
        return (ops.scan(lambda ops, c, _: (opstage.transform.grad(ops, energy, c), None), x, None, length=1)[0],)

    x = np.array([0.3, -0.2, 0.9, 0.4])
    (body,) = bodies_of(base, x)
    assert any(equation.opened for equation in body.equations)
    ops = NumpyOps(FLOAT64)
    tape = Tape(ops)
    leaf = tape.leaf(x)
    (gradient,) = evaluate(tape, body, [leaf], constants(tape, body))
    v = np.array([1.0, 2.0, -1.0, 0.5])
    (pulled,) = tape.pull([gradient], [v], [leaf])
    (hvp,) = opstage.hvp(energy, (x,), (v,), options=FLOAT64)
    np.testing.assert_allclose(pulled, hvp, rtol=1e-12)


def test_a_ref_that_is_captured_twice_is_one_operand() -> None:
    def base(ops: Any, w: Any) -> tuple[Any, ...]:
        step = lambda ops, c, _: (ops.add(ops.mul(c, w), ops.mul(ops.add(c, w), w)), ops.step())  # noqa: E731
        return (ops.scan(step, zero(ops), None, length=3)[0],)

    (body,) = bodies_of(base, 2.0)
    assert len(body.inputs) == 3  # the carry, w and the step


def test_derived_bodies_hold_only_what_their_outputs_need() -> None:
    """The gradient of a cumulative sum reads neither xs nor the carries, and computes no sum anew."""

    def base(ops: Any, xs: Any) -> tuple[Any, ...]:
        return (opstage.transform.grad(ops, lambda ops, xs: ops.sum(ops.scan(add, zero(ops), xs)[1]), xs),)

    forward, backward = bodies_of(base, np.arange(5.0))
    assert [str(e.primitive) for e in forward.equations] == ["add"]
    assert [str(e.primitive) for e in backward.equations] == ["add"]  # of the cotangents of the carry and of y
    assert len(backward.inputs) == 2


def test_shapes_alone() -> None:
    ops = ShapeOps(FLOAT64)
    (x,) = ops.declare([Spec("T 3")], ["x"])
    last, ys = cumulative_sum(ops, scanned, x)
    assert str(last.type) == "(3,) float64" and str(ys.type) == "(T, 3) float64"
