"""The memory of a training step before there is one: predicted from shapes, and the largest size that fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, final

import numpy as np

from ..api import with_train
from ..interpreters.graph.explain import explain
from ..interpreters.graph.recorder import record
from ..interpreters.shape_check.memory import Formula, History, Kind, Memory, MemoryOps, parse_bytes, show_bytes
from ..models import Model
from ..ops.dims import DimScope
from ..ops.errors import UsageError
from ..ops.spec import Spec, as_specs
from ..ops.trees import flatten, map_leaves, paths, unflatten
from ..ops.types import EXACT, TensorType, as_dtype
from ..options import Options
from .optim import Optimizer
from .sizes import MOST, around, bound_types, dim_names, largest, require_sizes, sample_sizes
from .step import UPDATE, Clip, LossProgram, step_program


@final
class StepMemory:
    """The tensor memory of one training step, forward, backward and update, in a run that has made steps before.

    `at` is the prediction at given sizes, `formula` the peak as a formula in the named dims, `largest` the greatest
    size of one of them that fits. Nothing is computed and no tensor is allocated.
    """

    def __init__(
        self,
        program: LossProgram,
        params: Sequence[TensorType],
        names: Sequence[str],
        state: Any,
        specs: Sequence[Any],
        optimizer: Optimizer,
        options: Options,
        clip: Clip | None = None,
    ):
        """`params` are the types of all parameters, called `names`; `state` is a pytree of Specs or arrays; `specs` are
        those of the batch. Raises UsageError for fractions, whose memory is not in tensors."""
        if as_dtype(options.dtype) == EXACT:
            raise UsageError("the numbers of dtype exact are objects of Python, whose memory is not predicted")
        self.options = options
        self.optimizer = optimizer
        self._program = program
        self._params = list(params)
        self._trained = [type_ for type_, wanted in zip(params, program.trained) if wanted]
        labels = [name for name, wanted in zip(names, program.trained) if wanted]
        self._slots = optimizer.init([(type_.shape, type_.dtype) for type_ in self._trained], labels)
        self._scalars = list(optimizer.scalars(1))
        state_specs, self._state_structure = flatten(as_specs(state))
        dtype = as_dtype(options.dtype)
        self._state = [spec.bind(DimScope(), dtype) for spec in state_specs]
        self._specs, self._batch_structure = flatten(tuple(as_specs(spec) for spec in specs))
        self._step = step_program(program, optimizer, clip)

    # What is asked --------------------------------------------------------------------------------------------------

    def at(self, **sizes: int) -> Memory:
        """The memory at its peak, with a size for every named dim of the batch.

        Raises UsageError for a name that is missing or that the Specs do not have, and for sizes that they do not
        allow.
        """
        require_sizes(self._specs, sizes)
        return self._at(sizes)

    def formula(self, **sizes: int) -> Formula:
        """The peak in bytes on the eager interpreter, as a formula in the named dims that are not given.

        Which of two kernels is used, and how one divides its work, depends on sizes; the formula takes it as it is at
        moderate ones. Raises UsageError for the compiled interpreter, whose memory is planned at numbers.
        """
        if self.options.backend == "compiled":
            raise UsageError("the memory of the compiled interpreter is planned at numbers, so there is no formula")
        require_sizes(self._specs, sizes, complete=False)
        return self._history(sizes, sample_sizes(self._specs, sizes)).formula()

    def largest(self, name: str, memory: str | int, **sizes: int) -> int:
        """The largest size of `name` at which the peak is within `memory`, such as "24GiB"; the others are given.

        It is solved from the formula, or for the compiled interpreter from the line through two plans, and then seen
        to fit and to be the last that does. Raises UsageError where not even 1 fits.
        """
        limit = parse_bytes(memory)
        if name in sizes:
            raise UsageError(f"{name} is what is looked for, so it takes no number")
        require_sizes(self._specs, {name: 1, **sizes} if name not in dim_names(self._specs) else sizes, complete=False)
        names = [other for other in dim_names(self._specs) if other not in sizes and other != name]
        if names:
            raise UsageError(f"give a number for {', '.join(names)}: the largest {name} depends on it")
        predicted = cache(lambda size: self._at({**sizes, name: size}).peak)
        found = largest(self._specs, sizes, name, lambda n: predicted(n) <= limit, self._guess(name, limit, sizes))
        if not found:
            at = "".join(f", {other}={size}" for other, size in sizes.items())
            raise UsageError(f"not even {name}=1{at} fits {show_bytes(limit)}: it takes {show_bytes(predicted(1))}")
        return found

    # How it is found ------------------------------------------------------------------------------------------------

    def _guess(self, name: str, limit: int, sizes: Mapping[str, int]) -> int:
        """About the largest size at which the peak is within `limit`."""
        if self.options.backend != "compiled":
            formula = self.formula(**sizes)
            return around(1, MOST, lambda n: formula({name: n}) <= limit)
        first, second = sorted(sample_sizes(self._specs, sizes)[name] * n for n in (1, 2))
        a, b = (self._at({**sizes, name: n}).peak for n in (first, second))
        return first + (limit - a) * (second - first) // max(1, b - a)

    def _at(self, sizes: Mapping[str, int]) -> Memory:
        if self.options.backend == "compiled":
            return self._compiled(sizes)
        return Memory.of(self._history(sizes, {}).peak({}))

    def _inputs(self, sizes: Mapping[str, int], scope: DimScope) -> dict[Kind, list[TensorType]]:
        """The types of what a step is given."""
        dtype = as_dtype(self.options.dtype)
        slots = [TensorType(slot.shape, np.dtype(slot.dtype)) for each in self._slots for slot in each]
        batch = bound_types(self._specs, sizes, scope, dtype)
        return {
            Kind.PARAMETERS: self._params,
            Kind.OPTIMIZER: slots + [TensorType((), dtype)] * len(self._scalars),
            Kind.STATE: self._state,
            Kind.BATCH: batch,
        }

    def _base(self, ops: Any, *refs: Any) -> tuple[Any, ...]:
        """The step on the leaves of `_inputs`."""
        given = iter(refs)
        leaves = [next(given) for _ in self._params]
        slots = [tuple([next(given) for _ in each]) for each in self._slots]
        scalars = {name: next(given) for name in self._scalars}
        state = unflatten(self._state_structure, [next(given) for _ in self._state])
        loss, aux, new, held = self._step(ops, leaves, slots, scalars, state, unflatten(self._batch_structure, given))
        return tuple(flatten((loss, dict(aux.metrics), aux.state, list(new), [list(each) for each in held]))[0])

    def _history(self, sizes: Mapping[str, int], sample: Mapping[str, int]) -> History:
        """What a step on the eager interpreter takes and gives back; `sample` has sizes for the names left symbolic."""
        scope = DimScope()
        ops = MemoryOps(self.options, scope, sample, {UPDATE: Kind.RESULTS})
        stays = [ops.new(type_, Kind.HOST) for type_ in self._trained]
        refs = [ops.new(type_, kind) for kind, types in self._inputs(sizes, scope).items() for type_ in types]
        results = ops.execute_each(self._base, tuple(refs))
        history = ops.timeline.close()
        del stays, results
        return history

    def _compiled(self, sizes: Mapping[str, int]) -> Memory:
        """What the plan of the compiled step says, beside what comes in."""
        inputs = self._inputs(sizes, DimScope())
        types = [type_ for each in inputs.values() for type_ in each]
        graph = record(self._base, types, as_dtype(self.options.dtype), self.options.seed)
        planned = explain(graph).memory
        given = {kind.name.lower(): sum(_nbytes(type_) for type_ in each) for kind, each in inputs.items()}
        host = sum(map(_nbytes, self._trained))
        return Memory(**given, host=host, results=planned.results, arena=planned.arena)


def _nbytes(type_: TensorType) -> int:
    nbytes: Any = type_.nbytes
    return int(nbytes)


def model_memory(
    model: Model, optimizer: Optimizer, options: Options | None = None, clip: Clip | None = None
) -> StepMemory:
    """The memory of a training step of a model, whose parameters are declared and not made."""
    options = options if options is not None else Options()
    dtype = as_dtype(options.dtype)
    leaves, structure = flatten(model.init)
    state = None if model.state is None else map_leaves(lambda leaf: Spec(leaf.shape), model.state)
    program = LossProgram(with_train(model.loss, True), structure, (True,) * len(leaves), model.state is not None)
    types = [TensorType(leaf.shape, dtype) for leaf in leaves]
    return StepMemory(program, types, paths(model.init), state, model.batch, optimizer, options, clip)
