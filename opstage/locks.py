"""Work done while locks are held, which are free after it, whatever is raised and whenever.

A context manager written in Python cannot promise that: an exception from outside, of a signal's handler, a debugger or
another thread, may come between taking a lock and noting that it is taken, or on the way into `__exit__`. Here each of
the two, to take and note all locks and to release those that are noted, is one bytecode, a call of functions written in
C; and the second is there twice, so that an exception right before the one still meets the other.
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

_ACQUIRE = methodcaller("acquire")
_TRY = methodcaller("acquire", False)
_RELEASE = methodcaller("release")


def holding(locks: Sequence[Lock], work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """`work(*args, **kwargs)` while `locks` are held, which are taken in their order; it waits for them."""
    return _held(_ACQUIRE, locks, lambda _: work(*args, **kwargs))


def holding_if_free(lock: Lock, work: Callable[[], T]) -> T | None:
    """`work()` while `lock` is held; None, at once, where another thread holds it."""
    return _held(_TRY, (lock,), lambda taken: work() if taken else None)


def _held(take: methodcaller, locks: Sequence[Lock], work: Callable[[list[Lock]], T]) -> T:
    """`work(taken)` with those of `locks` that were to be had."""
    taken: list[Lock] = []
    acquire = partial(taken.extend, compress(locks, map(take, locks)))
    release: partial[deque[None]] = partial(deque, map(_RELEASE, taken), 0)  # a second call finds nothing left
    try:
        try:
            acquire()
            return work(taken)
        finally:
            release()
    finally:
        release()
