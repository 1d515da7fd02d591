"""Mutual exclusion: locks that trainers and parameters share, and methods that hold them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, final

from ..forks import make_lock
from ..locks import holding
from ..ops.tracebacks import fold

P = ParamSpec("P")
T = TypeVar("T")


@final
class SharedLock:
    """A reentrant lock that is never copied or pickled: a copy of the object that it guards gets a new one."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = make_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedLock, ()


@final
class LockSet:
    """Several locks, always acquired in the same order to avoid deadlock."""

    __slots__ = ("locks",)

    def __init__(self, locks: Iterable[SharedLock]):
        self.locks = [shared.lock for shared in sorted(set(locks), key=id)]

    def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return `work(*args, **kwargs)`, called while holding all locks."""
        return holding(self.locks, work, *args, **kwargs)


class Guarded(Protocol):
    """An object whose methods run under its locks, one thread at a time."""

    @property
    def _locks(self) -> LockSet: ...


S = TypeVar("S", bound=Guarded)


def exclusive(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Decorate a method so that only one thread runs it at a time. Nested calls on the same object do not wait."""

    @wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # hides these frames in pytest's tracebacks
        try:
            return holding(self._locks.locks, method, self, *args, **kwargs)
        except Exception as error:
            fold(error)
            raise

    return waiting
