"""The team: every part of a job is done once, and the same parts whoever does them; nothing here depends on time."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from opstage.compiler.native import Kernel, compile_kernel, compiler, thread_pool

if not thread_pool.has_team():
    pytest.skip("a system without a team", allow_module_level=True)

WORKERS = 4


def noting() -> Any:
    from opstage.compiler.native.intrinsics import int64s

    def kernel(lo, hi, worker, arguments):  # type: ignore[no-untyped-def]
        w = int64s(arguments, 2)
        parts = int64s(w[0], 4 * w[1])
        parts[4 * worker] += 1
        parts[4 * worker + 1] = lo
        parts[4 * worker + 2] = hi
        total = parts[4 * worker + 3]
        for _ in range(lo, hi):
            total = total * 3 + 1
        parts[4 * worker + 3] = total

    return kernel


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    return compile_kernel("noting", "noting", noting)


@pytest.fixture(scope="module")
def board() -> int:
    return thread_pool.board.__wrapped__(WORKERS)


def word(board: int, place: int) -> Any:
    return ctypes.c_int64.from_address(board + place)


def noted(kernel: Kernel, board: int, tasks: list[int], workers: int = WORKERS) -> Any:
    """What was noted of each part of each step: how often it was done, its first task, its last, and a number."""
    parts = np.zeros((len(tasks), workers, 4), np.int64)
    arguments = [np.array([each.ctypes.data, workers], np.uint64) for each in parts]
    table = np.array([(kernel.address, n, own.ctypes.data) for n, own in zip(tasks, arguments)], np.int64)
    words = thread_pool.schedule_words()
    words[0], words[3], words[8] = table.ctypes.data, board, workers
    thread_pool._drive()(0, len(tasks), 0, words.ctypes.data)
    return parts


TASKS = [0, 1, 2, 3, 4, 5, 7, 1000, 100_000]


def expected(tasks: list[int]) -> list[list[tuple[int, int, int]]]:
    return [[(1, n * i // WORKERS, n * (i + 1) // WORKERS) for i in range(WORKERS)] for n in tasks]


def alone(board: int) -> int:
    """A board like the given one, of which nobody else knows."""
    size = thread_pool.CLAIMS + thread_pool.LINE * WORKERS
    made: int = compiler.map_memory(size)
    ctypes.memmove(made + thread_pool.FIXED, board + thread_pool.FIXED, thread_pool.LINE)
    return made


def owned(board: int) -> int:
    made = alone(board)
    word(made, thread_pool.OWNED).value = 1
    return made


BOARDS: dict[str, Callable[[int], int]] = {
    "with members": lambda board: board,
    "no member has come": alone,
    "another thread has the team": owned,
}


@pytest.mark.parametrize("which", BOARDS)
def test_the_parts_are_the_same_whoever_does_them(kernel: Kernel, board: int, which: str) -> None:
    at = BOARDS[which](board)
    found = noted(kernel, at, TASKS)
    assert [[tuple(part[:3]) for part in step] for step in found.tolist()] == expected(TASKS)
    np.testing.assert_array_equal(found, noted(kernel, owned(board), TASKS))
    marks = word(at, thread_pool.MARK).value
    assert (marks == 0) == (which == "another thread has the team")
    claims = [word(at, thread_pool.CLAIMS + thread_pool.LINE * part).value for part in range(WORKERS)]
    assert claims == [marks] * WORKERS
    assert word(at, thread_pool.OWNED).value == (which == "another thread has the team")


def test_a_process_that_left_its_threads_in_its_parent_does_not_look_at_the_board(
    kernel: Kernel, board: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread_pool._alone[0], before = 1, thread_pool._alone[0]
    try:
        at = alone(board)
        found = noted(kernel, at, TASKS)
    finally:
        thread_pool._alone[0] = before
    assert [[tuple(part[:3]) for part in step] for step in found.tolist()] == expected(TASKS)
    assert word(at, thread_pool.MARK).value == 0


def test_many_jobs_of_many_threads_are_done_whole(kernel: Kernel, board: int) -> None:
    """One at a time has the team, the others work alone; members sleep and wake between."""
    one = noted(kernel, owned(board), TASKS * 10)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as threads:
            found = [threads.submit(noted, kernel, board, TASKS * 10) for _ in range(100)]
            for each in found:
                np.testing.assert_array_equal(each.result(timeout=120), one)
    finally:
        sys.setswitchinterval(interval)
    assert word(board, thread_pool.OWNED).value == 0


def test_a_team_whose_threads_cannot_be_started_is_the_caller(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        """The C library of a system that gives no threads."""

        def __init__(self, name: str | None, use_errno: bool = False):
            self.real = ctypes.PyDLL(name)
            self.pthread_create = ctypes.PYFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * 4)(lambda *given: 11)  # EAGAIN

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

        __getitem__ = __getattr__

    monkeypatch.setattr(thread_pool.ctypes, "CDLL", Library)
    at = thread_pool.board.__wrapped__(WORKERS)
    monkeypatch.undo()
    found = noted(kernel, at, TASKS)
    assert [[tuple(part[:3]) for part in step] for step in found.tolist()] == expected(TASKS)
