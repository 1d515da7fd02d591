"""Threads that share a trainer, a session, parameters or a program: one after the other or an error, no update lost."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Param, ScalarModuleDef, Session, optim
from opstage.ops.errors import ProgramError
from opstage.training.parameters import get_values
from opstage.training.trainer import scalar_trainer

BACKENDS = ["eager", "compiled"]
THREADS, STEPS = 4, 15
X = np.array([1.0, -2.0, 0.5])


@pytest.fixture(autouse=True)
def switching() -> Iterator[None]:
    """Threads change every 10 µs, so that what can come between does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def options(backend: str) -> Options:
    return Options(backend=backend, dtype="float64", validate=False)


def together(*tasks: Callable[[], Any]) -> list[Any]:
    """The results of tasks that begin at one moment, each in a thread; the first error is raised."""
    barrier = threading.Barrier(len(tasks))

    def run(task: Callable[[], Any]) -> Any:
        barrier.wait()
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [each.result(timeout=120) for each in [pool.submit(run, task) for task in tasks]]


def linear(ops: Any, params: Any, x: Any) -> Any:
    """A gradient of x whatever the parameters are: then the sum of steps tells how many there were."""
    return ops.sum(ops.mul(params, x))


def counting(ops: Any, params: Any, state: Any, x: Any) -> Any:
    return linear(ops, params, x), opstage.Aux(state=ops.add(state, ops.full(shape=(), value=1.0)))


TAKE: dict[str, Callable[[Any], Any]] = {
    "step": lambda t: t.step(1.0, X),
    "step_with": lambda t: t.step_with(optim.sgd(lr=1.0), t.init_optim(optim.sgd(lr=1.0)), X),
    "advance": lambda t: t.advance(optim.sgd(lr=1.0), t.init_optim(optim.sgd(lr=1.0)), X),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", TAKE)
def test_no_step_of_a_shared_trainer_is_lost(how: str, backend: str) -> None:
    t = scalar_trainer(counting, np.zeros(3), options=options(backend), state=np.zeros(()))

    def steps() -> None:
        for _ in range(STEPS):
            TAKE[how](t)

    def reads() -> None:
        for _ in range(STEPS):
            taken = t.get_params() / -X  # as many steps at every element
            assert np.all(taken == taken[0]) and taken[0] == round(taken[0]), taken
            t.forward(X)
            t.export()

    together(*[steps] * THREADS, reads)
    assert t.get_params().tolist() == (-X * THREADS * STEPS).tolist()
    assert t.steps_taken == THREADS * STEPS and float(t.state) == THREADS * STEPS


@pytest.mark.parametrize("backend", BACKENDS)
def test_moments_that_a_trainer_keeps(backend: str) -> None:
    """As many Adam steps in threads as in a row: with one gradient their order does not matter."""
    t, alone = (scalar_trainer(linear, np.zeros(3), options=options(backend)) for _ in range(2))
    together(*[lambda: [t.adam_step(0.1, 0.9, 0.999, 1e-8, X) for _ in range(STEPS)]] * THREADS)
    for _ in range(STEPS * THREADS):
        alone.adam_step(0.1, 0.9, 0.999, 1e-8, X)
    np.testing.assert_array_equal(t.get_params(), alone.get_params())
    assert t.export().moments["adam"].t == STEPS * THREADS


@pytest.mark.parametrize("backend", BACKENDS)
def test_modules(backend: str) -> None:
    made = ScalarModuleDef(np.zeros(3), linear).instantiate(options(backend))
    together(*[lambda: made.train_sgd(1.0, STEPS, [(X,)], log_every=0)] * THREADS)
    assert made.params().tolist() == (-X * THREADS * STEPS).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_trainers_that_share_parameters(backend: str) -> None:
    """Two of three trainers have a parameter in common with the third, and not with each other."""
    a, b = Param(np.zeros(3), dtype="float64", name="a"), Param(np.zeros(3), dtype="float64", name="b")

    def both(ops: Any, params: Any, x: Any) -> Any:
        return ops.add(linear(ops, params[0], x), linear(ops, params[1], x))

    one, other = (scalar_trainer(linear, p, options=options(backend)) for p in (a, b))
    third = scalar_trainer(both, [a, b], options=options(backend))
    third_eager = scalar_trainer(both, [b, a], options=options("eager"))

    def steps(t: Any) -> Callable[[], None]:
        return lambda: [t.step(1.0, X) for _ in range(STEPS)] and None

    together(*map(steps, (one, other, third, third_eager)))
    assert a.value.tolist() == b.value.tolist() == (-X * 3 * STEPS).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_are_read_and_set_whole(backend: str) -> None:
    p = Param(np.zeros(3), dtype="float64")
    t = scalar_trainer(linear, p, options=options(backend))

    def steps() -> None:
        for _ in range(2 * STEPS):
            t.step(1.0, X)

    def reads() -> None:
        for _ in range(4 * STEPS):
            taken = p.value / -X
            assert np.all(taken == taken[0]), taken

    def writes() -> None:
        for k in range(STEPS):
            p.set(X * k)
            t.set_params(X * k)

    together(steps, reads, writes)


# Sessions ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_sessions_that_share_a_parameter(backend: str) -> None:
    p = Param(np.zeros(3), dtype="float64", name="p")

    def steps() -> None:
        session = Session(options(backend))
        for _ in range(STEPS):
            session.backward(session.sum(session.mul(session.use(p), session.input(X))))
            session.sgd_step_all(1.0)
            session.reset_tape()

    together(*[steps] * THREADS)
    assert p.value.tolist() == (-X * THREADS * STEPS).tolist()


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_tape_is_one_threads(backend: str) -> None:
    session = Session(options(backend))
    p = session.param(np.zeros(3), name="p")
    used, x, n = session.use(p), session.input(X), session.nat(1)
    total = session.sum(session.mul(used, x))
    session.backward(total)
    calls: list[Callable[[], Any]] = [
        lambda: session.use(p),
        lambda: session.input(X),
        lambda: session.leaf(X),
        lambda: session.const(1.0),
        lambda: session.nat(1),
        lambda: session.nat_vec([1]),
        lambda: session.get_nat(n),
        lambda: session.set_nat(n, 2),
        lambda: session.neg(x),
        lambda: session.mul(x, x),
        lambda: session.softmax(x),
        lambda: x * x,
        lambda: 2 * x + X,
        lambda: x[0],
        lambda: session.get_value(total),
        lambda: session.backward(total),
        lambda: session.grad(used),
        lambda: session.jvp_leaf(total, used, X),
        lambda: session.sgd_step_all(1.0),
        lambda: session.reset_tape(),
    ]
    for call in calls:

        def refused(call: Callable[[], Any] = call) -> None:
            with pytest.raises(ProgramError, match=r"used by two threads.*reset_tape"):
                call()

        together(refused)
    session.sgd_step_all(1.0)
    assert p.value.tolist() == (-X).tolist()
    session.reset_tape()
    together(lambda: (session.get_value(session.neg(session.input(X))), session.reset_tape()))  # handed over
    assert session.get_value(session.neg(session.input(X))).tolist() == (-X).tolist()


def test_two_threads_on_one_session_are_told() -> None:
    """Whatever comes first, at least one of them gets the error, and a loop that ends has lost no step."""
    for _ in range(10):
        session = Session(options("eager"))
        p = session.param(np.zeros(3), name="p")

        def steps(session: Session = session, p: Param = p) -> int:
            done = 0
            try:
                for _ in range(STEPS):
                    session.backward(session.sum(session.mul(session.use(p), session.input(X))))
                    session.sgd_step_all(1.0)
                    done += 1
                    session.reset_tape()
            except ProgramError as error:
                assert "two threads" in str(error)
            return done

        done = together(steps, steps)
        assert p.value.tolist() == (-X * sum(done)).tolist()


# Programs ------------------------------------------------------------------------------------------------------------


def drawing(ops: Any, x: Any) -> Any:
    """Regions and draws: what a cursor that two threads move would mix up."""

    def inner(ops: Any, x: Any) -> Any:
        return ops.add(x, ops.rand_normal(shape=x.shape))

    for name in ("a", "b", "a"):
        x = ops.region(name, inner, x)
    return ops.softmax(x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_run_at_the_same_time(backend: str) -> None:
    o = options(backend)
    rng = np.random.default_rng(0)
    inputs = [rng.normal(size=size) for size in (3, 3, 5, 7)]
    expected = [opstage.run(drawing, x, options=o) for x in inputs]
    slopes = [opstage.value_and_grad(lambda ops, x: ops.sum(ops.mul(x, x)), x, options=o)[1] for x in inputs]

    def asked(x: Any, y: Any, slope: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in range(STEPS):
                np.testing.assert_array_equal(opstage.run(drawing, x, options=o), y)
                _, got = opstage.value_and_grad(lambda ops, x: ops.sum(ops.mul(x, x)), x, options=o)
                np.testing.assert_array_equal(got, slope)

        return run

    together(*[asked(*each) for each in zip(inputs, expected, slopes)])


def test_a_compiled_program_is_shared() -> None:
    def squares(ops: Any, x: Any, y: Any) -> Any:
        return ops.sum(ops.mul(ops.mul(x, y), y))

    made = opstage.compile(
        squares,
        opstage.Spec("N", dtype="float64"),
        opstage.Spec("N", dtype="float64"),
        options=Options(dtype="float64"),
    )
    rng = np.random.default_rng(0)

    def asked(size: int) -> Callable[[], None]:
        x, y = rng.normal(size=size), rng.normal(size=size)

        def run() -> None:
            for _ in range(STEPS):
                np.testing.assert_allclose(made.forward(x, y), np.sum(x * y * y), rtol=1e-12)
                for got, expected in zip(made.backward(x, y), (y * y, 2 * x * y)):  # type: ignore[union-attr]
                    np.testing.assert_allclose(got, expected, rtol=1e-12)

        return run

    together(*map(asked, (3, 3, 50, 51)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_trainers_are_made_at_the_same_time(backend: str) -> None:
    def made() -> Any:
        o = Options(backend=backend, dtype="float64")
        t = scalar_trainer(linear, np.zeros(3), opstage.Spec("3"), options=o)
        t.adam_step(0.1, 0.9, 0.999, 1e-8, X)
        return t.get_params()

    results = together(*[made] * THREADS)
    assert all(np.array_equal(result, results[0]) for result in results)


def test_an_error_or_an_interrupt_lets_the_next_one_in() -> None:
    t = scalar_trainer(linear, np.zeros(3), options=options("eager"))
    for wrong in (lambda: t.step(-1.0, X), lambda: t.step(1.0, np.zeros(4)), lambda: t.set_params(np.zeros(2))):
        with pytest.raises(opstage.OpstageError):
            wrong()
    together(lambda: t.step(1.0, X))
    assert t.get_params().tolist() == (-X).tolist()


def test_copies_have_locks_of_their_own() -> None:
    p = Param(np.zeros(3), dtype="float64")
    get_values([p])
    other = copy.deepcopy(p)
    get_values([other])
    assert other.lock is not None and other.lock is not p.lock
    assert pickle.loads(pickle.dumps(p.lock)) is not p.lock
