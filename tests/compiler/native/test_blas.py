"""OpenBLAS on one thread: right counts for contexts that overlap, and nobody waits for ever."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest

from opstage.compiler.native import blas
from opstage.compiler.native.blas import OneThread
from tests.training.raising import RaiseAt, Torn, bytecodes

pytestmark = pytest.mark.filterwarnings("error")
WITHIN = ("compiler/native/blas", "threads")


class Threads:
    """The setting of a library."""

    def __init__(self) -> None:
        self.count = 4

    def get(self) -> int:
        return self.count

    def set(self, count: int) -> None:
        self.count = count


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> Threads:
    found = Threads()
    monkeypatch.setattr(blas, "_switches", lambda: (found.get, found.set))
    return found


def test_contexts_that_overlap_set_it_once_and_the_last_restores_it(threads: Threads) -> None:
    context = OneThread()
    context.__enter__()
    with context:
        context.__exit__()
        assert threads.count == 1
    assert threads.count == 4


def test_a_lock_that_is_never_released_stops_nobody(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "_PATIENCE", 0.05)
    context, held, stop = OneThread(), threading.Event(), threading.Event()

    def hold() -> None:
        with context._lock:
            held.set()
            stop.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    seen: list[int] = []

    def compute() -> None:
        for _ in range(20):
            with context:
                seen.append(threads.count)

    workers = [threading.Thread(target=compute) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
        assert not worker.is_alive()
    stop.set()
    holder.join()
    assert seen == [1] * 40 and threads.count == 4


def test_it_may_be_entered_from_a_handler_that_runs_within(threads: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    context = OneThread()
    inner: list[int] = []

    def get() -> int:
        if not inner:
            inner.append(0)
            with context:
                inner.append(threads.count)
        return threads.count

    monkeypatch.setattr(blas, "_switches", lambda: (get, threads.set))
    with context:
        assert threads.count == 1
    assert inner == [0, 1] and threads.count == 4


def test_the_lock_is_free_whatever_is_raised_at_whichever_bytecode(threads: Threads) -> None:
    def work() -> None:
        with OneThread():
            pass

    for n in range(1, bytecodes(work, WITHIN) + 1):
        context = OneThread()
        with suppress(Torn), RaiseAt(n, WITHIN), context:
            pass
        free: list[bool] = []
        other = threading.Thread(target=lambda context=context: free.append(context._lock.acquire(timeout=1)))
        other.start()
        other.join()
        assert free == [True], n
