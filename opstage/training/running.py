"""Base programs run on what a trainer holds and on a batch."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from types import MappingProxyType
from typing import Any, final

from ..api import argument_paths, put_all
from ..interpreters.anomaly import execute_watched
from ..interpreters.base_program import BaseProgram
from ..ops.trees import Structure, flatten, lists_as_arrays, unflatten
from ..options import Options
from .by_name import by_position
from .held import Held
from .promises import Promises


@final
class Running:
    """Runs base programs that take (…, state, batch), on the interpreter of what is held."""

    def __init__(self, loss: Callable[..., Any], held: Held, promises: Promises, options: Options):
        self._loss = loss
        self._held = held
        self._promises = promises
        self._options = options

    def run(
        self,
        base: Callable[..., Any],
        batch: tuple[Any, ...],
        *,
        other: Callable[..., Any] | None = None,
        key: tuple[Hashable, ...],
    ) -> Any:
        """What a base program gives on (parameters, state, batch), on the host; for the rest see `execute`."""
        held = self._held
        ran, outputs = self.execute(base, batch, lambda refs: (held.values(), *refs), other=other, key=key)
        return unflatten(result_of(ran), [held.host(ref) for ref in outputs])

    def execute(
        self,
        base: Callable[..., Any],
        batch: tuple[Any, ...],
        arguments: Callable[[tuple[Any, ...]], tuple[Any, ...]],
        *,
        other: Callable[..., Any] | None = None,
        key: tuple[Hashable, ...],
        spare: Mapping[int, bool] = MappingProxyType({}),
    ) -> tuple[BaseProgram, tuple[Any, ...]]:
        """Run a base program on (…, state, batch): the program, and values of the interpreter, once it is finished.

        `arguments` completes (state, batch); `key` tells a trainer's programs apart; `spare` are leaves that may be
        written over, see `BaseProgram`.

        `other` is the user's program that takes the batch, where that is not the loss; then the trainer's contract,
        which is about the loss, is not asked.
        """
        held, program = self._held, self._loss if other is None else other
        called = "the loss" if other is None else "the program"
        batch = lists_as_arrays(by_position(batch, program, held.batch_starts, called))
        arrays, batch_structure = flatten(batch)
        before = (None,) * (held.batch_starts - 1)
        refs = put_all(held.interpreter, arrays, lambda: argument_paths(program, (*before, *batch)))
        if other is None:
            self._promises.check(batch, arrays, refs)
        state = unflatten(held.structure, held.state)
        leaves, structure = flatten(arguments((state, unflatten(batch_structure, refs))))
        ran = BaseProgram(base, structure, (*key, held.trained), spare)
        return ran, execute_watched(held.interpreter, ran, tuple(leaves), self._options, held.steps_taken)


def result_of(ran: BaseProgram) -> Structure:
    """The structure of what a program returned."""
    assert ran.result is not None
    return ran.result
