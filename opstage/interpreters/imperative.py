"""The base interpreter of a session: for code that is not a program, and calls ops one by one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..ops.arrays import as_numpy
from ..ops.primitive import R
from .host import require_numbers
from .interpreter import BaseInterpreter
from .transparent import Transparent

Moment: TypeAlias = "Mapping[int, Any]"
"""The values, at one time, of the numbers that may change between evaluations."""


class Imperative(Transparent[R]):
    """Accepts ops from any of the user's code, and provides the same results as `execute` does for a program.

    Its refs live as long as a tape. Values that outlive it, such as parameters and moments, belong to the `store`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def store(self) -> BaseInterpreter[Any]:
        """The interpreter of the values that outlive a tape."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """Restart, as for a new program: with a fresh cursor, at training step `step`."""

    def admit(self, what: str) -> None:
        """Raise a ProgramError if `what` can no longer be passed in from outside."""
        return

    def failed(self) -> None:
        """Discard the effects of an op that failed."""
        return

    @abstractmethod
    def lift(self, value: Any) -> R:
        """A value of the store as a ref."""

    @abstractmethod
    def live(self, read: Callable[[], Any]) -> R:
        """A ref to an array that may have been replaced when it is read again."""

    def moment(self) -> Moment:
        """The current values of the live refs."""
        return {}

    @abstractmethod
    def fetch(self, refs: Sequence[R], moment: Moment | None = None) -> Sequence[Any]:
        """Refs as values of the store, at a moment, or now."""


def own_array(value: Any) -> np.ndarray[Any, Any]:
    """A copy of `value` as an array of numbers; a UsageError if it is not one."""
    return np.array(require_numbers(as_numpy(value)))
