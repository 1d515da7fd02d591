"""Run a function while holding locks, and release them whatever is raised, at any time.

A context manager written in Python cannot guarantee that: an exception from a signal handler, a debugger or another
thread may come between acquiring a lock and recording that it was acquired, or before `__exit__` begins. Here acquiring
and recording all locks is one bytecode, a call of functions written in C, and so is releasing the recorded ones. The
release occurs twice, so that an exception just before the first still reaches the second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress
from operator import methodcaller
from typing import ParamSpec, TypeVar

from .forks import Lock

P = ParamSpec("P")
T = TypeVar("T")

ACQUIRE = methodcaller("acquire")
_TRY = methodcaller("acquire", False)
_RELEASE = methodcaller("release")


def holding(locks: Sequence[Lock], work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """`work(*args, **kwargs)` while holding `locks`, acquired in order; waits for them."""
    return held(ACQUIRE, locks, [], work, *args, **kwargs)


def holding_if_free(lock: Lock, work: Callable[[], T]) -> T | None:
    """`work()` while holding `lock`; None, at once, if another thread holds it."""
    taken: list[Lock] = []
    return held(_TRY, (lock,), taken, lambda: work() if taken else None)


def holding_soon(lock: Lock, seconds: float, work: Callable[[bool], T]) -> T:
    """`work(True)` while holding `lock`, or `work(False)` without it if another thread holds it for so long."""
    taken: list[Lock] = []
    return held(methodcaller("acquire", timeout=seconds), (lock,), taken, lambda: work(bool(taken)))


def held(
    take: methodcaller,
    locks: Sequence[Lock],
    taken: list[Lock],
    work: Callable[P, T],
    /,
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """`work(*args, **kwargs)` with those of `locks` that could be acquired, which are added to `taken`."""
    acquire = partial(taken.extend, compress(locks, map(take, locks)))
    release: partial[deque[None]] = partial(deque, map(_RELEASE, taken), 0)  # a second call finds nothing left
    try:
        try:
            acquire()
            return work(*args, **kwargs)
        finally:
            release()
    finally:
        release()
