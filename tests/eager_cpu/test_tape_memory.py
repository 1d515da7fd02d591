"""What a tape holds: exactly the residuals that each primitive's `saves` names, for no longer than they are needed.

NumPy reports its buffers to tracemalloc in a domain of its own, so a figure here is the bytes of live arrays and
nothing else. The prediction comes from the primitives' declarations alone.
"""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from opstage import Options
from opstage.interpreters.registry import make_interpreter
from opstage.ops.dispatch import Quietly
from opstage.ops.primitive import Primitive, Static
from opstage.training.session import Session
from opstage.transforms.derivatives import value_and_grad
from opstage.transforms.tape import Tape
from opstage.transforms.transparent import Transparent

PLAIN = Options(fast_kernels=False)  # what a compiled kernel allocates, NumPy does not report
SIZE = 10_000
BYTES = 4 * SIZE


@pytest.fixture(autouse=True)
def _tracing() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


def live_bytes() -> int:
    """Bytes of all NumPy buffers made since tracing began."""
    snapshot = tracemalloc.take_snapshot()
    numpy_alone = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
    return sum(trace.size for trace in snapshot.filter_traces([numpy_alone]).traces)


class Ledger(Transparent[Any]):
    """Predicts what a tape above keeps: it sees every op and every array, and reads `saves` by name."""

    def __init__(self) -> None:
        super().__init__(make_interpreter(PLAIN))  # type: ignore[arg-type]
        self.known: dict[int, tuple[weakref.ref[Any], int]] = {}  # an address means a buffer while that one lives
        self.sizes: list[int] = []
        self.moving: set[int] = set()  # buffers that depend on a leaf
        self.saved: set[int] = set()

    def buffer(self, array: Any) -> int:
        """The number of the buffer that holds the array's elements."""
        while isinstance(array.base, np.ndarray):
            array = array.base
        reference, number = self.known.get(id(array), (None, 0))
        if reference is None or reference() is not array:
            number = len(self.sizes)
            self.sizes.append(array.nbytes)
            self.known[id(array)] = weakref.ref(array), number
        return number

    def leaf(self, array: Any) -> Any:
        self.moving.add(self.buffer(array))
        return array

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        names = primitive.operand_names(static, len(refs))
        operands = [self.buffer(ref) for ref in refs]
        outs = self.inner.bind(primitive, refs, static)
        results = [self.buffer(out) for out in outs]
        needed = {name for name, operand in zip(names, operands) if operand in self.moving}
        if needed and primitive.differentiable:
            self.moving.update(r for r, out in zip(results, outs) if out.dtype.kind == "f")
            every = dict(zip((*names, *primitive.outputs, *primitive.residuals), (*operands, *results)))
            for name, readers in primitive.saves.items():
                if name in every and needed.intersection(readers):
                    self.saved.add(every[name])
        return outs


def block(ops: Any, w: Any, x: Any) -> Any:
    """Something of every kind: linear ops, elementwise ones, fused ones with residuals, reductions, views, masks."""
    h = ops.layer_norm(ops.linear(w, None, x), None, None)
    h = ops.gelu(h) + ops.reshape(ops.neg(h), shape=h.shape) * 2.0
    h = ops.softmax(h) * ops.sigmoid(ops.permute(h, axes=(0, 1)))
    h = ops.select(ops.less(h, x), h, ops.exp(h))
    h = ops.log_softmax(ops.matmul(h, w))
    return ops.sum(ops.reduce_max(h, axis=1)) + ops.sum(ops.maximum(h, ops.relu(x)))


@pytest.mark.parametrize("trained", ["both", "weight"])
def test_a_forward_pass_holds_what_saves_declares(trained: str) -> None:
    rng = np.random.default_rng(1)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 64), (128, 64)))
    ledger = Ledger()
    tape = Tape(ledger)
    before = live_bytes()
    leaf = tape.leaf(ledger.leaf(w))
    other = tape.leaf(ledger.leaf(x)) if trained == "both" else tape.wrap(x)
    loss = block(tape, leaf, other)
    given = {ledger.buffer(w), ledger.buffer(x), ledger.buffer(loss.value)}
    predicted = sum(ledger.sizes[s] for s in ledger.saved - given)
    assert predicted > 5 * x.nbytes
    assert live_bytes() - before - loss.value.nbytes == pytest.approx(predicted, rel=0.01)


def chain(session: Any, x: Any, p: Any, ops: int) -> Any:
    for _ in range(ops // 3):
        x = session.mul(session.tanh(session.relu(x)), p)
    return x


DEPTH = 1998
# relu and tanh save their results; mul saves its operands: the result of tanh once more, and the parameter. The result
# of the last mul alone is saved by nobody.
HELD = DEPTH * 2 // 3 * BYTES


def test_a_deep_chain_holds_its_residuals_and_nothing_else() -> None:
    session = Session(PLAIN)
    p, x = session.use(session.param(np.ones(SIZE))), session.leaf(np.ones(SIZE))
    before = live_bytes()
    out = chain(session, x, p, DEPTH)
    assert live_bytes() - before == pytest.approx(HELD + BYTES, rel=0.01)
    del out
    gc.collect()
    assert live_bytes() - before < BYTES  # nobody can ask for gradients of it any more


def test_dense_adds_a_gradient_for_every_ref_and_sparse_leaves_those_of_leaves() -> None:
    session = Session(PLAIN)
    p, x = session.use(session.param(np.ones(SIZE))), session.leaf(np.ones(SIZE))
    seed = np.ones(SIZE, np.float32)
    before = live_bytes()
    out = chain(session, x, p, DEPTH)

    session.backward(out, seed=seed)
    gradients = (DEPTH + 2) * BYTES  # of every op's result, of p and of x
    assert live_bytes() - before == pytest.approx(HELD + BYTES + gradients, rel=0.01)

    session.backward(out, seed=seed, dense=False)
    assert live_bytes() - before == pytest.approx(3 * BYTES, rel=0.01)  # out itself, and the gradients of p and x

    session.reset_tape()  # x and the ref of p, which were there before, have no values any more either
    assert live_bytes() - before == pytest.approx(-2 * BYTES, rel=0.01)


def test_a_chain_of_linear_ops_holds_nothing() -> None:
    session = Session(PLAIN)
    x, c = session.leaf(np.ones(SIZE)), session.input(np.ones(SIZE))
    before = live_bytes()
    out = x
    for _ in range(500):
        out = session.add(session.scale(session.neg(out), c=0.5), c)
    assert live_bytes() - before == pytest.approx(BYTES, rel=0.01)  # out itself
    session.backward(out, seed=np.ones(SIZE))
    np.testing.assert_array_equal(session.grad(x)[0], np.float32(0.5**500))


def test_a_branch_that_nobody_uses_is_forgotten() -> None:
    session = Session(PLAIN)
    p, x = session.use(session.param(np.ones(SIZE))), session.leaf(np.ones(SIZE))
    trunk = session.tanh(x)
    before = live_bytes()
    for _ in range(5):
        chain(session, trunk, p, 300)
        assert live_bytes() - before < BYTES
    session.backward(session.sum(trunk))  # goes past it, too
    assert session.grad(p).tolist() == [0.0] * SIZE


def probed(session: Session, readings: list[int], x: Any) -> Any:
    """x unchanged; when a backward pass comes by, the bytes that live then are read."""

    def vjp(ops: Any, ctx: Any, cotangents: Any, /) -> Any:
        readings.append(live_bytes())
        return cotangents

    identity = Primitive("probe", operands=("x",), shape=lambda x: (x,), vjp=vjp, decomposition=lambda ops, x: (x,))
    return session.bind(identity, (x,), {})[0]


@pytest.mark.parametrize("dense", [True, False])
def test_sparse_backward_drops_residuals_as_it_goes(dense: bool) -> None:
    session = Session(PLAIN)
    p = session.use(session.param(np.ones(SIZE)))
    out: Any = session.leaf(np.ones(SIZE))
    readings: list[int] = []
    stretches, depth = 8, 150
    before = live_bytes()
    for _ in range(stretches):
        out = probed(session, readings, chain(session, out, p, depth))
    session.backward(session.sum(out), dense=dense)
    held = depth * 2 // 3 * BYTES  # by the residuals of one stretch
    gone = 0 if dense else held
    made = depth * BYTES if dense else 0  # gradients that are kept, per stretch
    for done, reading in enumerate(readings):
        expected = stretches * held - done * gone + done * made
        assert reading - before == pytest.approx(expected, abs=6 * BYTES)


def test_a_tape_without_a_session_is_as_lean() -> None:
    ops = make_interpreter(PLAIN)
    tape = Tape(ops)
    x = tape.leaf(np.ones(SIZE, np.float32))
    before = live_bytes()
    out = chain(tape, x, tape.wrap(np.ones(SIZE, np.float32)), 300)
    with Quietly(ops.cursor):
        (gradient,) = tape.pull([out], [np.ones(SIZE, np.float32)], [x], keep=False)
    assert gradient is not None
    assert live_bytes() - before <= 3 * BYTES


def test_a_loop_lets_go_of_what_it_captured() -> None:
    """At once, not when the garbage collector comes."""

    def looped(ops: Any, w: Any, x: Any) -> Any:
        def step(ops: Any, carry: Any, entry: Any) -> Any:
            return ops.tanh(ops.add(ops.mul(carry, w), entry)), None

        (out, _) = ops.scan(step, ops.full(shape=(SIZE,), value=0.0, dtype="float32"), x)
        return ops.sum(out)

    ops = make_interpreter(PLAIN)
    x = np.ones((3, SIZE), np.float32)
    before = live_bytes()
    gc.disable()
    try:
        for _ in range(3):
            w = np.full(SIZE, 0.5, np.float32)
            (_, (gradient,)) = value_and_grad(ops, looped, w, x)
            del w, gradient
        assert live_bytes() - before < BYTES
    finally:
        gc.enable()
