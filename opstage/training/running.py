"""Run programs on a trainer's values and a batch, by cached layouts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType
from typing import Any, final

import numpy as np

from ..api import put_all
from ..arguments import argument_paths, with_train
from ..interpreters.anomaly import execute_watched
from ..interpreters.base_program import BaseProgram, Identity
from ..ops.trees import Structure, flatten, lists_as_arrays, unflatten
from ..options import Options
from .by_name import by_position
from .held import Held
from .optim import Optimizer
from .parallel import DataParallel, Replicated
from .prepared import PreparedProgram
from .promises import Promises
from .row_terms import Divisor
from .step import Clip, Row, StepLayout

_LAYOUTS = 32
"""How many layouts are cached: they depend on the trained parameters, the optimizer and the structure of batches."""


@final
class Running:
    """Runs the programs of a loss that take (parameters, state, batch, …), on the interpreter of `held`.

    loss, held   the loss, and the trainer's values
    """

    def __init__(
        self,
        loss: Callable[..., Any],
        held: Held,
        promises: Promises,
        options: Options,
        clip: Clip | None = None,
        norm: bool = False,
    ):
        self.loss = loss
        self.held = held
        self._loss_when = {train: self._shared_out(with_train(loss, train)) for train in (False, True)}
        self._promises = promises
        self._options = options
        self._clip = clip
        self._norm = norm
        self._layouts: dict[Hashable, StepLayout] = {}

    def _shared_out(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Return the loss as a program of each rank of the mesh, or unchanged if one rank processes all rows."""
        alone = self.held.interpreter.mesh.is_alone
        return loss if alone else DataParallel(loss, self.held.batch_starts - 1)

    def _whole(self, program: Callable[..., Any]) -> Callable[..., Any]:
        """Return a program that accepts whole batches, also on a mesh."""
        return program if self.held.interpreter.mesh.ranks == 1 else Replicated(program)

    def batch(
        self, batch: tuple[Any, ...], other: Callable[..., Any] | None = None
    ) -> tuple[tuple[Any, ...], Structure]:
        """Return a batch as values of the interpreter, and its structure.

        `other` is the user's program for it, if that is not the loss; the trainer's contract, which is about the loss,
        is then not checked.
        """
        held, program = self.held, self.loss if other is None else other
        called = "the loss" if other is None else "the program"
        if _ARRAYS.issuperset(map(type, batch)):
            arrays, structure = [*batch], _structure_of(len(batch))
        else:
            batch = lists_as_arrays(by_position(batch, program, held.batch_starts, called))
            arrays, structure = flatten(batch)
        before = (None,) * (held.batch_starts - 1)
        refs = put_all(held.interpreter, arrays, lambda: argument_paths(program, (*before, *batch)))
        if other is None:
            self._promises.check(batch, arrays, refs)
        return refs, structure

    def layout(
        self,
        batch: Structure,
        *,
        train: bool = True,
        trained: tuple[bool, ...] | None = None,
        optimizer: Optimizer | None = None,
        slots: tuple[int, ...] = (),
        scalars: tuple[str, ...] = (),
        weigh: str | Divisor | None = None,
    ) -> StepLayout:
        """Return the layout of the loss on such batches; with an optimizer, of a step with these slots and scalars.

        `trained` has a flag for each parameter; None: their current flags.
        """
        if trained is None:
            trained = self.held.trained
        program = None if optimizer is None else optimizer.program_key
        key = (train, program, slots, scalars, trained, weigh, batch)
        layout = self._layouts.get(key)
        if layout is None:
            step = (optimizer, self._clip, slots, scalars, weigh, self._norm)
            made = self._made(self._loss_when[train], trained, batch, key, *step)
            layout = self._kept(key, made)
        return layout

    def layout_of(self, program: Callable[..., Any], batch: Structure) -> StepLayout:
        """Return the layout of another program of the parameters, in evaluation form."""
        trained = self.held.trained
        key = (Identity(program), trained, batch)
        layout = self._layouts.get(key)
        return (
            self._kept(key, self._made(self._whole(with_train(program, False)), trained, batch, key))
            if layout is None
            else layout
        )

    def prepared(self, program: Callable[..., Any], arrays: list[Any], batch: Structure) -> PreparedProgram | None:
        """Prepare fast calls of another program on arrays like these; return None if the interpreter has no such
        calls."""
        held = self.held
        refs = tuple([held.interpreter.put(array) for array in arrays])
        if any(ref is not array for ref, array in zip(refs, arrays)):
            return None  # the arrays are converted first
        values, layout = held.values(), self.layout_of(program, batch)
        row = layout.pack(values, held.state, refs)
        ran = BaseProgram(layout.value, None, (layout.value.__name__, layout.key))
        first = len(values) + len(held.state)
        found = held.interpreter.prepared(ran, row, range(first, len(row)))
        return None if found is None else PreparedProgram(held, values, arrays, *found)

    def _kept(self, key: Hashable, layout: StepLayout) -> StepLayout:
        if len(self._layouts) == _LAYOUTS:
            self._layouts.clear()
        self._layouts[key] = layout
        return layout

    def _made(
        self, loss: Callable[..., Any], trained: tuple[bool, ...], batch: Structure, key: Hashable, *step: Any
    ) -> StepLayout:
        held = self.held
        state, zero = held.structure if held.has_state else None, self._options.zero
        made = StepLayout(loss, held.places, trained, state, batch, key, *step)
        whole = tuple([param.shape if parts else None for param, parts in zip(held.params, held.in_parts)])
        return replace(made, zero=zero, whole=whole) if zero else made

    def run(
        self,
        program: Callable[..., Row],
        layout: StepLayout,
        refs: tuple[Any, ...],
        values: Sequence[Any] | None = None,
    ) -> tuple[Any, list[Any]]:
        """Run a program of a layout on (parameters, state, batch); return its result and its other outputs, on the
        host.

        `values` replaces the parameter values; None: the current ones.
        """
        held = self.held
        held_values = held.values() if values is None else values
        ran, outputs = self.execute(program, layout, layout.pack(held_values, held.state, refs))
        arrays, result = [held.host(ref) for ref in outputs], result_of(ran)
        return unflatten(result, arrays[: result.num_leaves]), arrays[result.num_leaves :]

    def execute(
        self,
        program: Callable[..., Row],
        layout: StepLayout,
        row: tuple[Any, ...],
        donated: Mapping[int, bool] = MappingProxyType({}),
        step: int | None = None,
    ) -> tuple[BaseProgram, tuple[Any, ...]]:
        """Run a program of a layout; return what ran and values of the interpreter that are ready once it is finished;
        see `BaseProgram`.

        `step` is the step number; None: the number of steps taken.
        """
        held = self.held
        ran = BaseProgram(program, None, (program.__name__, layout.key), donated)
        return ran, execute_watched(
            held.interpreter, ran, row, self._options, held.steps_taken if step is None else step
        )


_ARRAYS = {np.ndarray}


@cache
def _structure_of(count: int) -> Structure:
    """Return the structure of a batch of so many arguments, each an array."""
    return flatten((0,) * count)[1]


def result_of(ran: BaseProgram) -> Structure:
    """Return the structure of a program's result."""
    assert ran.result is not None
    return ran.result
