"""Atomic commits, blocks that defer interrupts, and the locks that trainers and parameters share."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from itertools import repeat
from operator import attrgetter
from types import FrameType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, final

from ..ops.tracebacks import fold, note_widened
from ..threads import ACQUIRE, held, holding, make_lock
from ..transforms.base_program import Action, at_once, setting

P = ParamSpec("P")
T = TypeVar("T")

_Handler: TypeAlias = "Callable[[int, FrameType | None], Any]"

_PUT_OFF = (int(signal.SIGINT), int(signal.SIGTERM))
_NATIVE: Any = import_module("_signal")  # `signal` beneath its enums, which take ten times as long


@final
class Commit:
    """New values of attributes of any objects, all assigned at once.

    No exception can come between the assignments, whether from a signal handler, a debugger or another thread.
    Assigning allocates nothing, so it cannot run out of memory either.
    """

    __slots__ = ("_actions", "_before")

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._before: list[tuple[object, str, Any]] = []  # also kept alive so that nothing is finalised in between

    def set(self, holder: object, name: str, value: Any) -> None:
        """Add the assignment `holder.name = value`; the attribute must exist."""
        self._before.append((holder, name, getattr(holder, name)))
        self._actions.append(setting(holder, name, value))

    def set_each(self, holders: Sequence[object], name: str, values: Iterable[Any]) -> None:
        """Call `set` for the same attribute of several holders."""
        self._before += zip(holders, repeat(name), map(attrgetter(name), holders))
        self._actions += map(setting, holders, repeat(name), values)

    def run(self, finish: Callable[[Sequence[Action]], None] = at_once) -> None:
        """Make the changes. `finish` receives the actions, and runs them together with its own work."""
        finish(self._actions)

    def undo(self) -> None:
        """Restore the values from when each change was prepared."""
        at_once([setting(*before) for before in self._before])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Return a context manager that defers SIGINT and SIGTERM until the block is done, so that its changes are
    complete.

    The previous handler receives the signal right after the block; Python's default raises KeyboardInterrupt. A signal
    without a Python handler is left alone: it ends the process or does nothing. Python delivers signals to the main
    thread only, so in other threads there is nothing to defer.
    """
    before: list[tuple[int, _Handler]] = []
    if threading.current_thread() is threading.main_thread():
        before = [(n, handler) for n in _PUT_OFF if callable(handler := _NATIVE.getsignal(n))]
    arrived: dict[int, FrameType | None] = {}
    try:
        try:
            for number, _ in before:
                _NATIVE.signal(number, arrived.__setitem__)
            yield
        finally:
            _restore(before)
    finally:
        _restore(before)  # again: another exception may have come while the handlers were restored
        for number, handler in before:
            if number in arrived:
                handler(number, arrived[number])


def _restore(handlers: list[tuple[int, _Handler]]) -> None:
    """Restore every handler, even if another signal's handler raises in between; then re-raise that error."""
    raised: BaseException | None = None
    for number, handler in handlers:
        for _ in range(_TRIES):
            try:
                _NATIVE.signal(number, handler)
                break
            except BaseException as error:  # not restored: signal.signal first runs pending handlers
                raised = error
    if raised is not None:
        raise raised


_TRIES = 10
"""How many signals may arrive while one handler is restored."""


# Locks ----------------------------------------------------------------------------------------------------------------


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
    """Decorate a public method so that one thread at a time runs it, with errors as of `called_by_users`.

    Nested calls on the same object do not wait.
    """

    @wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        __tracebackhide__ = True  # hides these frames in pytest's tracebacks
        try:
            return held(ACQUIRE, self._locks.locks, [], method, self, *args, **kwargs)
        except (Exception, KeyboardInterrupt) as error:
            fold(error)
            note_widened(error, args, kwargs)
            raise

    return waiting
