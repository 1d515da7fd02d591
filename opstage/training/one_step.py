"""One training step, all or nothing, of a trainer's parameters, state and moments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

from ..ops.errors import DeviceError, LocatedError
from .commit import Commit, uninterrupted
from .held import Held
from .optim import Optimizer
from .optimizer_state import OptimizerState, require_state
from .param import prepare_moved
from .step import Stepped
from .stepping import Stepping


@final
@dataclass(frozen=True)
class StepResult:
    """The results of one training step; `gradient_norm`, before clipping, where the trainer was made with it."""

    loss: Any
    metrics: Mapping[str, Any]
    state: OptimizerState
    gradient_norm: Any = None


def one_step(
    held: Held,
    stepping: Stepping,
    optimizer: Optimizer,
    state: OptimizerState,
    batch: tuple[Any, ...],
    *,
    moved: bool,
    named: str | None,
) -> StepResult:
    """Take a step that moves `state` on if `moved`, and keeps it among the trainer's moments if it is `named`."""
    interpreter = held.interpreter
    optimizer = held.bound(optimizer)
    whose = held.layout_of_bound(optimizer, held.trained)
    require_state(state, whose)
    t = state.t + 1
    ran, stepped, params, leaves = stepping.take(optimizer, t, state.values(interpreter), batch, moved=moved)
    following = state if moved else OptimizerState.on(interpreter, t, stepped.slots, whose)
    commit = Commit()
    prepare_moved(commit, params, stepped.parameters, interpreter, seen=False, parts=held.parts_among(params))
    if moved:
        state.prepare(commit, interpreter, t, stepped.slots)
    if interpreter.executes:
        if held.has_state:
            commit.set(held, "state", leaves)
        commit.set(held, "steps_taken", held.steps_taken + 1)
    if named is not None:
        commit.set(held, "moments", {**held.moments, named: following})
    if not ran.finishes:
        result = _read(held, stepped, following)  # an error here has changed nothing
        commit.run()
    else:
        with uninterrupted():  # work may reach a device call by call
            commit.run(ran.finish)
            try:
                result = _read(held, stepped, following)
            except DeviceError:  # the step's inputs have been overwritten
                raise
            except LocatedError:  # the inputs are intact: an index was out of range
                commit.undo()
                raise
    return result


def _read(held: Held, stepped: Stepped, following: OptimizerState) -> StepResult:
    host, norm = held.host, stepped.norm
    metrics = {name: host(value) for name, value in stepped.metrics.items()}
    return StepResult(host(stepped.loss), metrics, following, None if norm is None else host(norm))
