"""`PreparedProgram`: a program of a trainer's parameters prepared for one kind of batch, for frequent small calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, final

import numpy as np

from ..ops.trees import Structure
from .held import Held
from .param import mirrors


@final
class PreparedProgram:
    """A fast call of a program on a trainer's current values and on arrays of the kind it was prepared for.

    Returns None if the arrays are of another kind, or if the state that the program read or the trainer's values have
    been replaced; the caller then runs the program normally.
    """

    __slots__ = ("_held", "_values", "_state", "_kinds", "_call", "_unchanged", "_unflatten")

    def __init__(
        self,
        held: Held,
        values: list[Any],
        batch: Sequence[Any],
        call: Callable[[Sequence[Any]], Any],
        unchanged: Callable[[], bool],
        structure: Structure,
    ):
        self._held = held
        self._values = values
        self._state = list(held.state)
        self._kinds = [(array.shape, array.dtype) for array in batch]
        self._call = call
        self._unchanged = unchanged
        self._unflatten = structure.unflatten  # `call` gives as many leaves each time

    def fits(self, arrays: Sequence[Any]) -> bool:
        """Whether these arrays are of the kind it was prepared for, as machine code reads them."""
        if len(arrays) != len(self._kinds):
            return False
        for array, (shape, dtype) in zip(arrays, self._kinds):
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return False
            flags = array.flags
            if not (flags.c_contiguous and flags.aligned):
                return False
        return True

    def __call__(self, arrays: Sequence[Any]) -> Any:
        """Return the program's result for arrays that fit."""
        held = self._held
        if not all(map(is_, mirrors(held.params, held.interpreter), self._values)):
            return None
        if not all(map(is_, held.state, self._state)) or not self._unchanged():
            return None
        results = self._call(arrays)
        return None if results is None else self._unflatten(results)
