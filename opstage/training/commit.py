"""Commits that nothing can cut in two, and blocks that an interrupt waits for."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from operator import attrgetter
from types import FrameType
from typing import Any, TypeAlias, final

from ..interpreters.at_once import Action, at_once, setting

_Handler: TypeAlias = "Callable[[int, FrameType | None], Any]"

_PUT_OFF = (signal.SIGINT, signal.SIGTERM)


@final
class Commit:
    """New values of attributes of any objects, all of which take their places in one moment.

    No exception can come in between, whoever raises it: a handler of any signal, a debugger, another thread. An
    assignment allocates nothing, so it does not run out of memory either.
    """

    __slots__ = ("_actions", "_before")

    def __init__(self) -> None:
        self._actions: list[Action] = []
        self._before: list[tuple[object, str, Any]] = []  # also kept so that nothing is finalised in between

    def set(self, holder: object, name: str, value: Any) -> None:
        """Let `holder.name` become `value`; the attribute is there already."""
        self._before.append((holder, name, getattr(holder, name)))
        self._actions.append(setting(holder, name, value))

    def set_each(self, holders: Sequence[object], name: str, values: Iterable[Any]) -> None:
        """`set` for several holders of an attribute of one name."""
        self._before += zip(holders, repeat(name), map(attrgetter(name), holders))
        self._actions += map(setting, holders, repeat(name), values)

    def run(self, finish: Callable[[Sequence[Action]], None] = at_once) -> None:
        """Make the changes; `finish` does what belongs to the same moment before it calls the actions."""
        finish(self._actions)

    def undo(self) -> None:
        """Put back what was there when each change was prepared."""
        at_once([setting(*before) for before in self._before])


@contextmanager
def uninterrupted() -> Iterator[None]:
    """`with uninterrupted():` puts off SIGINT and SIGTERM until the block is done, so what it changes is changed whole.

    The handler that stood before the block gets the signal right after it; Python's own raises KeyboardInterrupt.
    A signal that no handler in Python hears is left alone: it ends the process or does nothing, and so cuts nothing in
    two. Python delivers signals to the main thread alone, so elsewhere there is nothing to defer.
    """
    before: list[tuple[int, _Handler]] = []
    if threading.current_thread() is threading.main_thread():
        before = [(n, handler) for n in _PUT_OFF if callable(handler := signal.getsignal(n))]
    arrived: dict[int, FrameType | None] = {}
    try:
        try:
            for number, _ in before:
                signal.signal(number, arrived.__setitem__)
            yield
        finally:
            _restore(before)
    finally:
        _restore(before)  # again: another exception may have come just as the handlers were put back
        for number, handler in before:
            if number in arrived:
                handler(number, arrived[number])


def _restore(handlers: list[tuple[int, _Handler]]) -> None:
    """Put every handler back, also where another signal's handler raises in between; then that is raised."""
    raised: BaseException | None = None
    for number, handler in handlers:
        for _ in range(_TRIES):
            try:
                signal.signal(number, handler)
                break
            except BaseException as error:  # before it was put back: signal.signal first hears what has arrived
                raised = error
    if raised is not None:
        raise raised


_TRIES = 10
"""As many signals as may come while one handler is put back."""
