"""`RunningAverage`: an exponential moving average of parameters, held and moved where the parameters are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np

from ..api import owned
from ..interpreters.base_program import BaseProgram
from ..interpreters.interpreter import BaseInterpreter
from ..ops.arrays import as_numpy
from ..ops.errors import UsageError
from ..ops.trees import flatten
from ..ops.types import is_float
from .commit import Commit
from .saved import Array, require_fit
from .sharding import fetched
from .state import TrainerState


@final
class RunningAverage:
    """An average of one trainer's parameters, equal to them when it is first placed or moved.

    e ← e + (1 - decay)·(p - e), in the dtype of the parameters, by a program of the trainer's interpreter; integer
    tables are copied unchanged.
    """

    __slots__ = ("_home", "_given", "_values")

    def __init__(self, values: Mapping[str, Array] | None = None):
        """`values` are the arrays that `ScalarTrainer.export_average` returned."""
        self._given = None if values is None else {name: np.array(as_numpy(array)) for name, array in values.items()}
        self._home: BaseInterpreter[Any] | None = None
        self._values: tuple[Any, ...] = ()  # of the parameters that are floats

    def values_on(self, held: TrainerState) -> list[Any]:
        """Return the average of each parameter, as values of the interpreter of `held`."""
        self._place(held)
        own = iter(self._values)
        return [next(own) if is_float(p.dtype) else value for p, value in zip(held.params, held.values())]

    def move(self, held: TrainerState, decay: float) -> None:
        """Move the average towards the parameters; see `ScalarTrainer.average`."""
        self._place(held)
        interpreter = held.interpreter
        params = [value for p, value in zip(held.params, held.values()) if is_float(p.dtype)]
        count = len(params)
        row = (*self._values, *params, interpreter.put(np.asarray(1 - decay)))
        program = BaseProgram(_moved, None, ("average", count), dict.fromkeys(range(count), True))
        moved = interpreter.execute(program, row, held.steps_taken)
        commit = Commit()
        commit.set(self, "_values", tuple(moved))
        commit.run(program.finish)

    def export(self, held: TrainerState) -> dict[str, Array]:
        """Return the average of each parameter by path, as arrays that the caller owns."""
        found = zip(held.names, held.params, self.values_on(held))
        return {name: owned(fetched(held.interpreter, value, param.shape, param.dtype)) for name, param, value in found}

    def _place(self, held: TrainerState) -> None:
        if self._home is held.interpreter:
            return
        if self._home is not None:
            raise UsageError("a running average is one of the parameters of one trainer; make another for this one")
        arrays = self._given
        if arrays is None:
            arrays = {name: np.array(param.value) for name, param in zip(held.names, held.params)}
        expected = {name: (param.shape, param.dtype) for name, param in zip(held.names, held.params)}
        require_fit("the saved averages of the parameters", expected, arrays)
        kept = [
            (arrays[name], parts)
            for name, param, parts in zip(held.names, held.params, held.in_parts)
            if is_float(param.dtype)
        ]
        values = tuple([held.put(array, parts=parts) for array, parts in kept])
        self._values, self._home, self._given = values, held.interpreter, None


def _moved(ops: BaseInterpreter[Any], *row: Any) -> tuple[list[Any], Any]:
    *tensors, share = row
    half = len(tensors) // 2
    new = []
    for e, p in zip(tensors[:half], tensors[half:]):
        step = ops.mul(ops.broadcast_to(share, shape=p.shape), ops.sub(p, e))
        new.append(ops.add(e, step))
    return new, flatten(None)[1]
