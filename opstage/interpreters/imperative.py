"""The base interpreter of a session: for code that is not a program, whose ops come one by one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from ..ops.errors import UsageError
from ..ops.primitive import R
from .interpreter import BaseInterpreter
from .transparent import Transparent

Moment: TypeAlias = "Mapping[int, Any]"
"""The numbers that may change between two evaluations, as they were at one time."""


class Imperative(Transparent[R]):
    """Takes ops whenever a user's own code calls them, and gives what `execute` gives to a program.

    Its refs live as long as a tape. What outlives one, parameters and moments, are values of the `store`.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def store(self) -> BaseInterpreter[Any]:
        """The interpreter of the values that outlive a tape."""

    @abstractmethod
    def begin(self, step: int) -> None:
        """Start anew, as a program does: from a fresh cursor, at training step `step`."""

    def admit(self, what: str) -> None:
        """Raise a ProgramError if `what` cannot come in from outside any more."""
        return

    def failed(self) -> None:
        """Forget what an op did before it failed."""
        return

    @abstractmethod
    def lift(self, value: Any) -> R:
        """A value of the store as a ref."""

    @abstractmethod
    def live(self, read: Callable[[], Any]) -> R:
        """A ref to an array that may be another one when it is next asked for."""

    def moment(self) -> Moment:
        """The live values at this moment."""
        return {}

    @abstractmethod
    def fetch(self, refs: Sequence[R], moment: Moment | None = None) -> Sequence[Any]:
        """Refs as values of the store, as of a moment, or now."""


def own_array(value: Any) -> np.ndarray[Any, Any]:
    """A copy of `value` as an array; a UsageError for what is none."""
    try:
        return np.array(value)
    except ValueError as error:
        raise UsageError(f"not an array: {error}") from None
