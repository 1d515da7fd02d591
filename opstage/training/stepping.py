"""Take a step of a whole batch or of its parts in sequence; nothing changes until it is committed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, NamedTuple, final

import numpy as np

from ..interpreters.base_program import BaseProgram
from ..ops.errors import UsageError
from ..ops.trees import flatten
from .accumulate import Accumulate, Rows, apply_donated, apply_row, summed
from .hyperparameters import require_real
from .joinable import Joinable
from .optim import Optimizer
from .param import Param, alone
from .row_terms import Divisor
from .running import Running, result_of
from .step import StepLayout, Stepped


class UncommittedStep(NamedTuple):
    """A computed step: the run to finish, its outputs, its parameters and its new state."""

    ran: BaseProgram
    stepped: Stepped
    params: list[Param]
    state: list[Any]


@final
class Stepping:
    """Takes steps of a loss, with batches whole or in parts."""

    def __init__(self, running: Running, accumulate: Accumulate | None):
        self._running = running
        self._accumulate = accumulate
        self._joinable = None if accumulate is None else Joinable(running, accumulate)

    @property
    def in_parts(self) -> bool:
        """Whether batches are computed in parts."""
        return self._accumulate is not None

    def take(
        self,
        optimizer: Optimizer,
        t: int,
        moments: Sequence[tuple[Any, ...]],
        batch: tuple[Any, ...],
        *,
        moved: bool,
    ) -> UncommittedStep:
        """Step `t` of a bound optimizer from these moments, which it may overwrite if `moved`."""
        running, held = self._running, self._running.held
        interpreter = held.interpreter
        scalars = {name: require_real(name, value) for name, value in optimizer.scalars(t).items()}
        trained, values = held.trained, held.values()

        def layout_of(structure: Any, weigh: str | Divisor | None = None) -> StepLayout:
            return running.layout(
                structure,
                trained=trained,
                optimizer=optimizer,
                slots=tuple(map(len, moments)),
                scalars=tuple(scalars),
                weigh=weigh,
            )

        def numbers() -> list[Any]:
            return [interpreter.put(np.asarray(value)) for value in scalars.values()]

        if self._accumulate is None:
            refs, structure = running.batch(batch)
            layout = layout_of(structure)
            params = [held.params[i] for i in layout.moved]
            row = layout.pack(values, held.state, refs, moments, numbers())
            donated = layout.donated(alone(params, interpreter), slots=moved)
            ran, outputs = running.execute(layout.step, layout, row, donated)
            stepped = layout.unpack(outputs, result_of(ran))
            return UncommittedStep(ran, stepped, params, self._state_of(stepped, refs))
        return self._in_parts(self._accumulate, batch, moments, values, layout_of, numbers, moved=moved)

    def _in_parts(
        self,
        accumulate: Accumulate,
        batch: tuple[Any, ...],
        moments: Sequence[tuple[Any, ...]],
        values: Sequence[Any],
        layout_of: Callable[..., StepLayout],
        numbers: Callable[[], list[Any]],
        *,
        moved: bool,
    ) -> UncommittedStep:
        held, interpreter = self._running.held, self._running.held.interpreter
        if not interpreter.executes:
            raise UsageError("accumulate computes with numbers; a backend that knows shapes alone takes whole batches")
        assert self._joinable is not None
        rows = Rows(self._running, batch)
        parts = rows.parts(accumulate.parts)
        found = self._joinable.require(rows, parts)
        own = accumulate.metric if accumulate.metric is not None else found.divisor
        layout = layout_of(rows.structure, own)
        params = [held.params[i] for i in layout.moved]
        done = summed(self._running, layout, parts, accumulate.by, found.metrics)
        donated = apply_donated(layout, alone(params, interpreter), slots=moved)
        row = apply_row(layout, values, moments, numbers(), done)
        ran, outputs = self._running.execute(layout.apply, layout, row, donated)
        updated = layout.unpack(outputs, result_of(ran))
        stepped = Stepped(done.loss, done.metrics, done.state, updated.parameters, updated.slots, updated.norm)
        refs = tuple(chain.from_iterable(part.refs for part in parts))
        return UncommittedStep(ran, stepped, params, self._state_of(stepped, refs))

    def _state_of(self, stepped: Stepped, batch: Sequence[Any]) -> list[Any]:
        """Return the new state, copied if it shares memory with the batch, which the caller may overwrite."""
        if not self._running.held.has_state:
            return []

        def shared(value: Any) -> bool:
            return any(isinstance(ref, np.ndarray) and np.may_share_memory(value, ref) for ref in batch)

        leaves = flatten(stepped.state)[0]
        return [np.array(value) if isinstance(value, np.ndarray) and shared(value) else value for value in leaves]
