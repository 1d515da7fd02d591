"""Whatever is raised while a lock is taken, held or given back, the lock is free afterwards."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Param, Session
from opstage.threads import Lock, holding, holding_if_free, make_lock
from opstage.training.parameters import get_values, set_values
from tests.training.raising import RaiseAt, Torn, bytecodes

TAKING = ("threads", "training/commit", "training/param", "training/session", "training/trainer", "training/state")
X = np.arange(3.0)


def loss(ops: Any, params: Any, x: Any) -> Any:
    return ops.sum(ops.mul(ops.mul(params["a"], params["b"]), x))


def free(locks: list[Lock]) -> bool:
    """Whether another thread can have all of them, at once."""
    found: list[bool] = []

    def look() -> None:
        for lock in locks:
            if got := lock.acquire(blocking=False):
                lock.release()
            found.append(got)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return all(found)


def two_of_their_own() -> dict[str, Param]:
    """Parameters that two sessions have used, so that each has a lock of its own."""
    params = {"a": Param(X, dtype="float64"), "b": Param(X + 1, dtype="float64")}
    for param in params.values():
        Session(Options(dtype="float64")).use(param)
    return params


def session_steps(params: dict[str, Param]) -> Callable[[], object]:
    session = Session(Options(dtype="float64"))
    a, b = map(session.use, params.values())
    session.backward(session.sum(session.mul(a, b)))
    return lambda: session.sgd_step_all(0.0)


def trainer(params: dict[str, Param]) -> Any:
    return opstage.scalar_trainer(loss, params, options=Options(dtype="float64", validate=False))


WORKS: dict[str, Callable[[dict[str, Param]], Callable[[], object]]] = {
    "value": lambda params: lambda: params["a"].value,
    "set": lambda params: lambda: params["a"].set(X),
    "get_values": lambda params: lambda: get_values(params),
    "set_values": lambda params: lambda: set_values(params, {"a": X, "b": X}),
    "session step": session_steps,
    "trainer.get_params": lambda params: trainer(params).get_params,
    "trainer.forward": lambda params: partial(trainer(params).forward, X),
    "trainer.step": lambda params: partial(trainer(params).step, 0.0, X),
}


@pytest.mark.parametrize("name", WORKS)
def test_a_lock_is_free_whatever_is_raised_at_whichever_bytecode(name: str) -> None:
    params = two_of_their_own()
    locks = [param.lock.lock for param in params.values() if param.lock is not None]
    assert len(set(map(id, locks))) == 2
    work = WORKS[name](params)
    work()
    for n in range(1, bytecodes(work, TAKING) + 1):
        with suppress(Torn), RaiseAt(n, TAKING):
            work()
        assert free(locks), f"an exception before bytecode {n} leaves a lock taken"


@pytest.mark.parametrize(
    "run", [lambda locks, work: holding(locks, work), lambda locks, work: holding_if_free(locks[0], work)]
)
@pytest.mark.parametrize("fails", [False, True])
def test_the_work_is_done_while_they_are_held(run: Any, fails: bool) -> None:
    locks = [make_lock(), make_lock()]
    seen: list[bool] = []

    def work() -> int:
        seen.append(free(locks[:1]))
        if fails:
            raise Torn
        return 3

    for n in range(bytecodes(lambda: suppressed(lambda: run(locks, work)), ("threads",)) + 1):
        seen.clear()
        with suppress(Torn), RaiseAt(n, ("threads",)):
            assert run(locks, work) == 3
        assert seen in ([], [False]) and free(locks)
    assert run(locks, lambda: run(locks, lambda: 4)) == 4  # by one thread, again


def suppressed(work: Callable[[], object]) -> None:
    with suppress(Torn):
        work()


def test_the_locks_before_one_that_is_waited_for_in_vain_are_free() -> None:
    """A signal's handler raises while the second lock is another thread's."""
    locks = [make_lock(), make_lock()]
    held, leave = threading.Event(), threading.Event()

    def holds() -> None:
        with locks[1]:
            held.set()
            leave.wait()

    def raising(number: int, frame: Any) -> None:
        raise Torn

    thread = threading.Thread(target=holds)
    thread.start()
    held.wait()
    before = signal.signal(signal.SIGALRM, raising)
    try:
        with pytest.raises(Torn):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            holding(locks, lambda: None)
        assert free(locks[:1]) and not free(locks[1:])
        assert holding_if_free(locks[1], lambda: 1) is None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        leave.set()
        thread.join()
    assert free(locks)
