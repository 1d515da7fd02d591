"""`PreparedProgram`: a program of a trainer's parameters on one kind of batch, for who asks often and little."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, final

import numpy as np

from ..ops.trees import Structure, unflatten
from .held import Held
from .param import mirrors


@final
class PreparedProgram:
    """A quick call of a program on what a trainer holds, as it is at each call, and on arrays like those it is for.

    It gives None where it is not for these arrays, or what the program read or the trainer holds is elsewhere now;
    then the program is to be run as any other.
    """

    __slots__ = ("_held", "_values", "_state", "_kinds", "_call", "_unchanged", "_structure")

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
        self._structure = structure

    def fits(self, arrays: Sequence[Any]) -> bool:
        """Whether these are arrays that it is for, as machine code reads them."""
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
        """The program's result, for arrays that fit."""
        held = self._held
        if not all(map(is_, mirrors(held.params, held.interpreter), self._values)):
            return None
        if not all(map(is_, held.state, self._state)) or not self._unchanged():
            return None
        results = self._call(arrays)
        return None if results is None else unflatten(self._structure, results)
