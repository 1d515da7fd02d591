"""Runs that go on for long: memory, threads and files are at the end what they were when the run had begun to repeat.

Tensors are counted to the byte. The process as a whole is held to margins: the C library keeps what it likes of memory
that was given back. So each runs in a process of its own.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest

import opstage
from opstage import Options, Session, optim
from opstage.init import build
from opstage.models import mlp
from tests.graph.counting_allocator import Counted
from tests.processes import alone

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="the process is looked at by way of /proc"),
]

BACKENDS = ["eager", "compiled"]
MODEL = mlp.make(mlp.Config(hidden=(64, 64), dropout=0.1))
SMALL = mlp.make(mlp.Config(inputs=(1, 1, 4), hidden=(8,), dropout=0.0))
MIB = 1 << 20


class Held(NamedTuple):
    """What the process has."""

    resident: int
    threads: int
    files: int

    def assert_no_more_than(self, before: Held, margin: int) -> None:
        assert self.resident <= before.resident + margin, f"{(self.resident - before.resident) / MIB:.1f} MiB more"
        assert self.threads <= before.threads or threads_once_ended(before.threads) <= before.threads
        assert self.files <= before.files


def held() -> Held:
    gc.collect()
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return Held(resident, len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd")))


def threads_once_ended(expected: int) -> int:
    """The threads that there are once those that have been joined are gone: the system takes a moment to end them."""
    give_up = time.monotonic() + 10
    while (count := len(os.listdir("/proc/self/task"))) > expected and time.monotonic() < give_up:
        os.sched_yield()
    return count


@contextmanager
def flat(margin: int = 0) -> Iterator[None]:
    """What is done within takes no tensor memory that it does not give back, but for `margin` bytes."""
    gc.collect()
    with Counted() as count:
        yield
        gc.collect()
        assert count.live <= margin


def batch(rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(rows)
    return rng.normal(size=(rows, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, rows)


def trainer(backend: str, **more: Any) -> opstage.ScalarTrainer:
    options = Options(backend=backend, **more)
    params = build(MODEL.init, dtype=options.dtype, seed=0)
    return opstage.scalar_trainer(MODEL.loss, params, *MODEL.batch, options=options)


def repeated(turn: Callable[[int], Any], times: int, margin: int) -> None:
    """Half of the turns, then the other half: it has nothing that the first had not."""
    for i in range(times // 2):
        turn(i)
    middle = held()
    for i in range(times // 2, times):
        turn(i)
    held().assert_no_more_than(middle, margin)


@pytest.mark.parametrize("backend", BACKENDS)
@alone
def test_ten_thousand_steps(backend: str) -> None:
    made, optimizer, given = trainer(backend), optim.adamw(lr=1e-3), batch(32)
    state = made.init_optim(optimizer)
    made.advance(optimizer, state, *given)
    repeated(lambda i: made.advance(optimizer, state, *given), 10_000, 2 * MIB)
    with Counted() as count:
        made.advance(optimizer, state, *given)
        before = count.live
        for _ in range(100):
            made.advance(optimizer, state, *given)
        assert count.live <= before + 1000


@pytest.mark.parametrize("backend", BACKENDS)
@alone
def test_two_thousand_shapes(backend: str) -> None:
    options = Options(backend=backend, program_memory="16MiB")
    made = opstage.scalar_trainer(SMALL.loss, build(SMALL.init, seed=0), *SMALL.batch, options=options)
    optimizer = optim.sgd(lr=1e-3)
    state = made.init_optim(optimizer)

    def step(rows: int) -> None:
        made.advance(optimizer, state, np.ones((rows, 1, 1, 4), np.float32), np.zeros(rows, np.int64))

    step(2001)
    repeated(lambda i: step(1 + (i * 7) % 2000), 2000, 16 * MIB)
    if backend == "compiled":
        interpreter: Any = made._interpreter
        assert sum(kept.nbytes for kept in interpreter.programs.executors) <= 16 * MIB


@alone
def test_shapes_without_specs_and_validated_one_by_one() -> None:
    """Facts of the last thousand shapes are kept, so each half has more than that."""
    made = opstage.scalar_trainer(SMALL.loss, build(SMALL.init, seed=0), options=Options(backend="eager"))

    def step(rows: int) -> None:
        made.step(0.1, np.ones((rows, 1, 1, 4), np.float32), np.zeros(rows, np.int64))

    step(2501)
    repeated(lambda i: step(1 + i), 2500, 4 * MIB)


@pytest.mark.parametrize("backend", BACKENDS)
@alone
def test_five_hundred_trainers(backend: str) -> None:
    given = batch(200)

    def use(i: int) -> None:
        made = trainer(backend)
        made.adam_step(1e-3, 0.9, 0.99, 1e-8, *given)
        made.forward(*given)

    use(0)
    repeated(use, 500, 8 * MIB)
    gc.collect()
    gc.disable()
    try:
        with Counted() as count:
            use(0)
            first = count.peak
            for i in range(10):
                use(i)
            assert count.peak <= first + 100_000  # the one before is gone before the next is made
            assert count.live <= 100_000
    finally:
        gc.enable()


@pytest.mark.parametrize("backend", BACKENDS)
@alone
def test_two_thousand_tapes_and_a_hundred_sessions(backend: str) -> None:
    rng = np.random.default_rng(0)
    w = rng.normal(size=(64, 64)).astype(np.float32)

    def train(session: Session, param: Any, rows: int) -> None:
        x = session.input(rng.normal(size=(rows, 64)).astype(np.float32))
        session.backward(session.sum(session.tanh(session.matmul(x, session.use(param)))))
        session.adam_step_all(1e-3)
        session.reset_tape()

    session = Session(Options(backend=backend))
    param = session.param(w)
    train(session, param, 10)
    repeated(lambda i: train(session, param, 10 + i % 20), 2000, 8 * MIB)

    def whole(i: int) -> None:
        made = Session(Options(backend=backend))
        train(made, made.param(w), 10)

    repeated(whole, 100, 8 * MIB)


@alone
def test_programs_made_anew_for_every_call() -> None:
    """Each lambda is another program, with a table of its own; an interpreter that is shared may not keep them all."""
    options = Options(backend="compiled", program_memory="8MiB")
    x = np.ones((100, 100), np.float32)

    def ask(i: int) -> None:
        table = np.eye(100, dtype=np.float32) * i  # not of one number, which would stand in a kernel's text
        table.flags.writeable = False
        found = opstage.run(lambda ops, x: ops.sum(x * ops.const(table)), x, options=options)
        assert found == i * 100

    ask(0)
    repeated(ask, 2000, 16 * MIB)


@pytest.mark.parametrize("backend", BACKENDS)
@alone
def test_threads_that_come_and_go(backend: str) -> None:
    given = batch(64)
    made = trainer(backend)
    made.step(0.1, *given)

    def work(i: int) -> None:
        thread = threading.Thread(target=lambda: made.forward(*given))
        thread.start()
        thread.join()

    work(0)
    repeated(work, 200, 8 * MIB)


@pytest.mark.parametrize("backend", BACKENDS)
@alone
def test_steps_that_raise(backend: str) -> None:
    made, (x, y) = trainer(backend), batch(32)
    made.step(0.1, x, y)

    def fail(i: int) -> None:
        with pytest.raises(opstage.OpstageError):
            made.step(0.1, x, y + 10)

    fail(0)
    repeated(fail, 1000, 4 * MIB)
