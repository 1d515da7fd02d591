"""One thread at a time: locks that trainers and parameters share, and methods that take them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, final

from ..forks import make_lock
from ..locks import holding

P = ParamSpec("P")
T = TypeVar("T")


@final
class Turn:
    """A lock that its holder may take again. It is never copied or pickled: a copy of what it guards has its own."""

    __slots__ = ("lock",)

    def __init__(self) -> None:
        self.lock = make_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Turn, ()


@final
class Turns:
    """Several locks taken together, always in one order, so that nobody waits for somebody who waits."""

    __slots__ = ("_locks",)

    def __init__(self, turns: Iterable[Turn]):
        self._locks = [turn.lock for turn in sorted(set(turns), key=id)]

    def run(self, work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """`work(*args, **kwargs)` while all are held."""
        return holding(self._locks, work, *args, **kwargs)


class HasTurns(Protocol):
    """An object whose methods run under its locks, one thread at a time."""

    @property
    def _turns(self) -> Turns: ...


S = TypeVar("S", bound=HasTurns)


def in_turn(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """The method, run by one thread at a time; others wait. What it calls of the same object goes on at once."""

    @wraps(method)
    def waiting(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._turns.run(method, self, *args, **kwargs)

    return waiting
