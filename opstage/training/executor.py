"""`Executor`: bind a batch, choose the program, execute it, commit its results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from operator import is_
from typing import Any, final

import numpy as np

from ..api import put_all
from ..ops.errors import DeviceError, LocatedError
from ..ops.trees import Structure, flatten, lists_as_arrays, unflatten
from ..optim import Optimizer
from ..optim.hyperparameters import require_reals
from ..options import Options
from ..program_arguments import argument_paths, with_train
from ..transforms.base_program import BaseProgram, Identity
from .accumulate import Accumulate, GradientAccumulation, Microbatches
from .commit import Commit, uninterrupted
from .parallel import DataParallel, Replicated
from .param import alone, mirrors, prepare_update
from .sharding import REPLICATED, Sharding
from .state import BoundOptimizer, OptimizerState, TrainerState, require_state
from .step import Clip, Row, StepOutputs, TrainingStep
from .validate import BatchContract, by_position, require_count

_STEPS = 32
"""How many programs are cached: they depend on the trained parameters, the optimizer and the structure of batches."""


@final
@dataclass(frozen=True)
class StepResult:
    """The results of one training step; `gradient_norm`, before clipping, where the trainer was made with it."""

    loss: Any
    metrics: Mapping[str, Any]
    state: OptimizerState
    gradient_norm: Any = None


@final
class Executor:
    """Executes training steps and other programs of a trainer's parameters on its interpreter."""

    def __init__(
        self,
        loss: Callable[..., Any],
        state: TrainerState,
        contract: BatchContract,
        options: Options,
        clip: Clip | None = None,
        accumulate: Accumulate | None = None,
        norm: bool = False,
    ):
        self.loss = loss
        self.state = state
        self._contract = contract
        self._clip = clip
        self._norm = norm
        self._loss_when = {train: self._of_each_rank(with_train(loss, train)) for train in (False, True)}
        self._accumulation = None if accumulate is None else GradientAccumulation(self, accumulate)
        whole = tuple([p.shape if parts else None for p, parts in zip(state.params, state.in_parts)])
        self._sharding = Sharding(options.zero, whole) if options.zero else REPLICATED
        self._steps: dict[Hashable, TrainingStep] = {}

    def _of_each_rank(self, loss: Callable[..., Any]) -> Callable[..., Any]:
        """Return the loss as a program of each rank of the mesh, or unchanged if one rank processes all rows."""
        return loss if self.state.interpreter.mesh.is_alone else DataParallel(loss, self.state.batch_starts - 1)

    # A training step --------------------------------------------------------------------------------------------

    def train_step(
        self,
        optimizer: Optimizer,
        moments: OptimizerState,
        batch: tuple[Any, ...],
        *,
        in_place: bool,
        name: str | None = None,
    ) -> StepResult:
        """Take one step, all or nothing. With `in_place` it updates `moments`, and with a `name` the trainer stores
        them."""
        state, interpreter = self.state, self.state.interpreter
        own = state.bind_optimizer(optimizer)
        if type(moments) is not OptimizerState or moments.layout is not own.layout:
            require_state(moments, own.layout)
        t = moments.t + 1
        scalars = require_reals(own.optimizer.step_scalars(t))
        values, slots = mirrors(state.params, interpreter, state.in_parts), moments.values(interpreter)
        # Bind the batch and choose the program.
        step: TrainingStep | Microbatches
        if self._accumulation is None:
            refs, structure = self.bind_batch(batch)
            step = self.choose_step(structure, optimizer=own, scalars=tuple(scalars))
        else:  # the step of their gradients
            refs, step = self._accumulation.compute(batch, own, tuple(scalars))
        numbers = [interpreter.put(np.asarray(value, interpreter.dtype)) for value in scalars.values()]
        row = step.pack(values, state.state, refs, slots, numbers)
        donated = step.donated(alone(own.params, interpreter), slots=in_place)
        # Execute it.
        program = BaseProgram(step.program, None, step.key, donated)
        outputs = interpreter.execute(program, row, state.steps_taken)
        assert program.result is not None
        found = step.unpack(outputs, program.result)
        # Commit its outputs.
        commit = Commit()
        prepare_update(commit, own.params, found.parameters, interpreter, seen=False, parts=own.in_parts)
        if in_place:
            moments.prepare(commit, interpreter, t, found.slots)
        else:
            moments = OptimizerState.on(interpreter, t, found.slots, own.layout)
        if interpreter.executes:
            if state.has_state:
                commit.set(state, "state", _unaliased(flatten(found.state)[0], refs))
            commit.set(state, "steps_taken", state.steps_taken + 1)
        if name is not None:
            commit.set(state, "moments", {**state.moments, name: moments})
        return self._commit(commit, program, found, moments)

    def _commit(self, commit: Commit, program: BaseProgram, found: StepOutputs, moments: OptimizerState) -> StepResult:
        """Commit a step and return its results, which are read before if nothing is overwritten."""
        if not program.finishes:
            result = self._read(found, moments)  # an error here has changed nothing
            commit.run()
            return result
        with uninterrupted():  # work may reach a device call by call
            commit.run(program.finish)
            try:
                return self._read(found, moments)
            except DeviceError:  # the step's inputs have been overwritten
                raise
            except LocatedError:  # the inputs are intact: an index was out of range
                commit.undo()
                raise

    def _read(self, found: StepOutputs, moments: OptimizerState) -> StepResult:
        host = self.state.host
        metrics = {name: host(value) for name, value in found.metrics.items()}
        return StepResult(host(found.loss), metrics, moments, None if found.norm is None else host(found.norm))

    # The parts of every run -------------------------------------------------------------------------------------

    def bind_batch(
        self, batch: tuple[Any, ...], other: Callable[..., Any] | None = None
    ) -> tuple[tuple[Any, ...], Structure]:
        """Return a batch as values of the interpreter, and its structure.

        `other` is the user's program for it, if that is not the loss; the contract, which is about the loss, is then
        not checked.
        """
        state, program = self.state, self.loss if other is None else other
        if _ARRAYS.issuperset(map(type, batch)):
            arrays, structure = [*batch], _batch_structure(len(batch))
        else:
            called = "the loss" if other is None else "the program"
            batch = lists_as_arrays(by_position(batch, program, state.batch_starts, called))
            arrays, structure = flatten(batch)
        before = (None,) * (state.batch_starts - 1)
        refs = put_all(state.interpreter, arrays, lambda: argument_paths(program, (*before, *batch)))
        if other is None:
            self._contract.check(batch, arrays, refs)
        return refs, structure

    def choose_step(
        self,
        batch: Structure,
        *,
        train: bool = True,
        optimizer: BoundOptimizer | None = None,
        scalars: tuple[str, ...] = (),
    ) -> TrainingStep:
        """Return the loss on such batches; with an optimizer, a step with these scalars."""
        if optimizer is None:
            key: Hashable = (train, self.state.trained, batch)
        else:
            key = (optimizer.optimizer.program_key, optimizer.slots, scalars, optimizer.trained, batch)
        step = self._steps.get(key)
        if step is None:
            require_count(batch.num_children, self.loss, self.state.batch_starts)
            step = self._store(key, self._loss_when[train], batch, optimizer, scalars)
        return step

    def choose_program(self, program: Callable[..., Any], batch: Structure) -> TrainingStep:
        """Return another program of the parameters, in evaluation form, as the loss of a step without optimizer."""
        key = (Identity(program), self.state.trained, batch)
        step = self._steps.get(key)
        if step is None:
            require_count(batch.num_children, program, self.state.batch_starts, "the program")
            whole = with_train(program, False)
            whole = whole if self.state.interpreter.mesh.ranks == 1 else Replicated(whole)
            step = self._store(key, whole, batch)
        return step

    def _store(
        self,
        key: Hashable,
        loss: Callable[..., Any],
        batch: Structure,
        optimizer: BoundOptimizer | None = None,
        scalars: tuple[str, ...] = (),
    ) -> TrainingStep:
        state = self.state
        structure = state.structure if state.has_state else None
        trained = state.trained if optimizer is None else optimizer.trained
        step = TrainingStep(loss, state.places, trained, structure, batch, key, sharding=self._sharding)
        if optimizer is not None:
            update, slots = optimizer.optimizer, optimizer.slots
            step = replace(step, optimizer=update, clip=self._clip, slots=slots, scalars=scalars, norm=self._norm)
        if len(self._steps) == _STEPS:
            self._steps.clear()
        self._steps[key] = step
        return step

    def execute(self, program: BaseProgram, row: tuple[Any, ...]) -> tuple[tuple[Any, ...], Structure]:
        """Return what a program computes, and the structure of its result; ready once the program is finished."""
        outputs = self.state.interpreter.execute(program, row, self.state.steps_taken)
        assert program.result is not None
        return outputs, program.result

    def evaluate(
        self,
        program: Callable[..., Row[Any]],
        step: TrainingStep,
        refs: tuple[Any, ...],
        values: Sequence[Any] | None = None,
    ) -> tuple[Any, list[Any]]:
        """Run a program of a step on (parameters, state, batch); return its result and its other outputs, on the host.

        `values` replaces the parameter values; None: the current ones.
        """
        state = self.state
        row = step.pack(state.values() if values is None else values, state.state, refs)
        outputs, structure = self.execute(BaseProgram(program, None, (program.__name__, step.key)), row)
        arrays = [state.host(ref) for ref in outputs]
        return unflatten(structure, arrays[: structure.num_leaves]), arrays[structure.num_leaves :]

    def prepare(self, program: Callable[..., Any], arrays: list[Any], batch: Structure) -> PreparedProgram | None:
        """Prepare fast calls of another program on arrays like these; return None if the interpreter has no such
        calls."""
        state = self.state
        refs = tuple([state.interpreter.put(array) for array in arrays])
        if any(ref is not array for ref, array in zip(refs, arrays)):
            return None  # the arrays are converted first
        values, step = state.values(), self.choose_program(program, batch)
        row = step.pack(values, state.state, refs)
        first = len(values) + len(state.state)
        found = state.interpreter.prepared(
            BaseProgram(step.value, None, ("value", step.key)), row, range(first, len(row))
        )
        return None if found is None else PreparedProgram(state, values, arrays, *found)


_ARRAYS = {np.ndarray}


@cache
def _batch_structure(count: int) -> Structure:
    """Return the structure of a batch of `count` arguments, each an array."""
    return flatten((0,) * count)[1]


def _unaliased(leaves: Sequence[Any], batch: Sequence[Any]) -> list[Any]:
    """Return the leaves of a new state, copied if they share memory with the batch, which the caller may overwrite."""

    def shared(value: Any) -> bool:
        return any(isinstance(ref, np.ndarray) and np.may_share_memory(value, ref) for ref in batch)

    return [np.array(value) if isinstance(value, np.ndarray) and shared(value) else value for value in leaves]


@final
class PreparedProgram:
    """A fast call of a program on a trainer's current values and on arrays of the kind it was prepared for.

    Returns None if the arrays are of another kind, or if the state that the program read or the trainer's values have
    been replaced; the caller then runs the program normally.
    """

    __slots__ = ("_owner", "_values", "_state", "_kinds", "_call", "_unchanged", "_unflatten")

    def __init__(
        self,
        state: TrainerState,
        values: list[Any],
        batch: Sequence[Any],
        call: Callable[[Sequence[Any]], Any],
        unchanged: Callable[[], bool],
        structure: Structure,
    ):
        self._owner = state
        self._values = values
        self._state = list(state.state)
        self._kinds = [(array.shape, array.dtype) for array in batch]
        self._call = call
        self._unchanged = unchanged
        self._unflatten = structure.unflatten  # `call` gives as many leaves each time

    def fits(self, arrays: Sequence[Any]) -> bool:
        """Return whether these arrays are of the kind it was prepared for, as machine code reads them."""
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
        state = self._owner
        if not all(map(is_, state.values(), self._values)):
            return None
        if not all(map(is_, state.state, self._state)) or not self._unchanged():
            return None
        results = self._call(arrays)
        return None if results is None else self._unflatten(results)
