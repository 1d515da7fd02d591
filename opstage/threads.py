"""Locks that survive a fork and any exception, usable cores, and pauses of the garbage collector.

A child has the memory of its parent but only the thread that forked. A lock held by another thread would stay locked
for ever, and the data that it guards may be half changed. So a fork first acquires all locks made here, which waits for
the threads that hold them; after two seconds it goes on with a warning. For locks whose holders never wait for another
thread it waits without a limit: a child cannot use a half-imported numba or half-compiled code.
"""

from __future__ import annotations

import gc
import logging  # noqa: F401  its own lock is then taken after those here: handlers run last registered first
import os
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from itertools import compress
from operator import methodcaller
from time import monotonic, sleep
from types import TracebackType
from typing import Any, ParamSpec, Protocol, TypeVar, final
from weakref import WeakKeyDictionary, WeakSet

_PATIENCE = 2.0  # seconds; the holder may be waiting for the thread that forks
_TRY = 0.02
_IMPORT = 60.0
_IMPORTED_LATE = ("opstage", "numba", "llvmlite", "numpy")  # imported when first needed, by any thread


def usable_cores() -> int:
    """Return the number of cores on which this process may run, which may be fewer than the machine has."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class Lock(Protocol):
    """A reentrant lock."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> bool: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


_locks: WeakSet[Any] = WeakSet()
_always: list[Any] = []
_notified: WeakKeyDictionary[Any, Callable[[Any], None]] = WeakKeyDictionary()


class _Held(threading.local):
    """The locks that this thread has acquired for its fork: behind a None those of `_always`, behind another the rest.

    Each thread has its own: several may fork at once, and a lock can be released only where it was acquired.
    """

    def __init__(self) -> None:
        self.locks: list[Lock | None] = []


_held = _Held()


def make_lock(*, waits_for_others: bool = True) -> Lock:
    """A lock that is free in a child, unless the forking thread held it.

    `waits_for_others` says whether the holder may wait for another thread, as any user's function may.
    """
    lock = threading.RLock()
    if waits_for_others:
        _locks.add(lock)
    else:
        _always.append(lock)
    return lock


def tell_in_child(holder: object, notify: Callable[[Any], None]) -> None:
    """Call `notify(holder)` in every child that is forked while `holder` is alive."""
    _notified[holder] = notify


def _before() -> None:
    """Acquire all locks. Two threads that each hold one may wait for each other, so a lock that is not free means a
    restart."""
    _wait_for_imports()
    _held.locks.append(None)
    for lock in tuple(_always):
        _acquire(lock)
    deadline = monotonic() + _PATIENCE
    while True:
        _held.locks.append(None)
        for lock in (locks := _listed(_locks)):
            if not _acquire(lock, _TRY) and monotonic() < deadline:
                _release()
                break
        else:
            break
    _wait_for_imports()
    if _held.locks[::-1].index(None) < len(locks):
        warnings.warn(
            f"this process forks while another thread has been computing for {_PATIENCE:g} s; what that thread was "
            "changing, as parameters in a training step, may be half changed in the child. Fork when no other thread "
            "is at work, or start processes with multiprocessing.get_context('spawn')",
            RuntimeWarning,
            stacklevel=2,
        )


def _wait_for_imports() -> None:
    deadline = monotonic() + _IMPORT
    while _is_importing() and monotonic() < deadline:
        sleep(_TRY / 10)


def _is_importing() -> bool:
    """Whether another thread is importing a module: a child would wait for that import for ever."""
    sleep(0)  # so that this thread has just been scheduled, and keeps running until the fork
    locks: Any = getattr(import_module("importlib._bootstrap"), "_module_locks", {})
    for name, found in _listed(locks.items()):
        if name.startswith(_IMPORTED_LATE) and getattr(found(), "owner", None) not in (None, threading.get_ident()):
            return True
    return False


def _listed(weak: Iterable[Any]) -> list[Any]:
    while True:
        try:
            return list(weak)
        except RuntimeError:  # another thread changes it
            continue


def _acquire(lock: Lock, timeout: float = -1) -> bool:
    """Acquire a lock and record that, as one step: no signal's handler can raise in between."""
    count = len(_held.locks)
    _held.locks.extend(filter(methodcaller("acquire", True, timeout), (lock,)))
    return len(_held.locks) > count


def _release() -> None:
    """Release the locks back to the last None, each as it is popped."""
    if _held.locks:
        deque(map(methodcaller("release"), iter(_held.locks.pop, None)), maxlen=0)


def _in_parent() -> None:
    _release()
    _release()


def _in_child() -> None:
    _in_parent()
    for lock in (*_always, *_listed(_locks)):
        if not lock._is_owned():
            lock._at_fork_reinit()
    for holder, notify in _listed(_notified.items()):
        notify(holder)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
    os.register_at_fork(after_in_parent=_in_parent)  # again: an interrupt may have ended the first call


# Work under locks ----------------------------------------------------------------------------------------------------
#
# A context manager written in Python cannot guarantee that locks are released: an exception from a signal handler, a
# debugger or another thread may come between acquiring a lock and recording that it was acquired, or before `__exit__`
# begins. Here acquiring and recording all locks is one bytecode, a call of functions written in C, and so is releasing
# the recorded ones. The release occurs twice, so that an exception just before the first still reaches the second.

P = ParamSpec("P")
T = TypeVar("T")

ACQUIRE = methodcaller("acquire")
_RELEASE = methodcaller("release")


def holding(locks: Sequence[Lock], work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """`work(*args, **kwargs)` while holding `locks`, acquired in order; waits for them."""
    return held(ACQUIRE, locks, [], work, *args, **kwargs)


def holding_if_free(lock: Lock, work: Callable[[], T]) -> T | None:
    """`work()` while holding `lock`; None, at once, if another thread holds it."""
    taken: list[Lock] = []
    return held(methodcaller("acquire", False), (lock,), taken, lambda: work() if taken else None)


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


# The garbage collector -----------------------------------------------------------------------------------------------
#
# Its finalizers and callbacks are not part of a recorded program. And planning creates many objects that stay: the
# collector would traverse all of them again and again without finding garbage.


@final
class _Collector:
    """The collector, shared by all threads: it resumes when the last thread that paused it has finished."""

    def __init__(self) -> None:
        self._lock = make_lock(waits_for_others=False)
        self._pauses = 0
        self._enabled = False
        self._own = threading.local()  # the pauses of this thread, in `count`
        tell_in_child(self, _Collector._forked)

    def pause(self) -> None:
        with self._lock:
            if not self._pauses:
                self._enabled = gc.isenabled()
            self._pauses += 1
            self._own.count = self._of_this_thread() + 1
            gc.disable()

    def resume(self) -> None:
        with self._lock:
            self._pauses -= 1
            self._own.count -= 1
            if not self._pauses and self._enabled:
                gc.enable()

    def _of_this_thread(self) -> int:
        return getattr(self._own, "count", 0)

    def _forked(self) -> None:
        """In a forked child the other threads no longer exist."""
        if self._pauses:
            self._pauses = self._of_this_thread()
            if not self._pauses and self._enabled:
                gc.enable()


_collector = _Collector()


@contextmanager
def paused_gc() -> Iterator[None]:
    """No garbage collection in any thread until this ends; objects without reference cycles are freed as usual."""
    _collector.pause()
    try:
        yield
    finally:
        _collector.resume()
