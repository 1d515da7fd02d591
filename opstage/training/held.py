"""The state of a trainer: parameters, the program's own state, moments; exported and restored whole."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, final

import numpy as np

from ..api import owned, snapshot
from ..init import Constant
from ..interpreters.anomaly import watched
from ..interpreters.interpreter import BaseInterpreter
from ..interpreters.mesh.ranks import on_mesh
from ..interpreters.registry import make_interpreter
from ..ops.errors import UsageError
from ..ops.places import Places
from ..ops.trees import align, flatten, lists_as_arrays, structure_paths, unflatten
from ..ops.types import DType, Shape, is_float
from ..options import Options
from . import optim
from .commit import Commit
from .optim import Optimizer
from .optimizer_state import OptimizerState, StateLayout, TrainedParameter, require_optimizer, require_state
from .param import Param, mirrors, trained_among
from .parameters import as_param, requires_grad_flags, same_bits
from .saved import OptimizerValues, TrainerValues, require_fit
from .sharding import DATA, is_in_parts, is_shared, part_shape, placed
from .sharing import require_apart

_LAYOUTS = 8
"""How many layouts a trainer caches. They depend on the optimizer, and a program may make a new one each step."""

# The optimizers behind the steps that keep their own moments; hyperparameters do not change the slots.
_NAMED: dict[str, Optimizer] = {"sgd": optim.sgd(), "adam": optim.adam(), "adamw": optim.adamw()}


@final
class Held:
    """Parameters, state and moments as values of one interpreter, and the number of steps taken.

    places, names, params    the places of the parameters in their tree, their paths, and each of them once
    state, structure         the program's own state: its leaves, values of the interpreter, and their tree
    has_state                whether the program has one
    moments                  the states of the optimizers behind `ScalarTrainer.step`, `adam_step` and `adamw_step`
    """

    def __init__(self, params: Any, state: Any, requires_grad: Any, options: Options):
        params, state = lists_as_arrays(params), lists_as_arrays(state)
        leaves, structure = flatten(params)
        require_apart(params)
        flags = requires_grad_flags(params, requires_grad, options)
        self.places = Places.among(structure, leaves)
        self.names = self.places.names
        firsts = self.places.first(leaves)
        self.params = [as_param(leaf, name, flag, options) for leaf, name, flag in zip(firsts, self.names, flags)]
        self.steps_taken = 0
        self.interpreter: BaseInterpreter[Any] = on_mesh(watched(make_interpreter(options), options), options)
        self._zero = options.zero
        shares = self.interpreter.mesh.size(DATA) != 1
        self._in_parts = tuple([shares and is_in_parts(p.shape, p.dtype, options.zero) for p in self.params])
        self.has_state = state is not None
        state_leaves, self.structure = flatten(state)
        self.state = [self.interpreter.put(snapshot(leaf)) for leaf in state_leaves]
        self.moments: dict[str, OptimizerState] = {}
        self._layouts: dict[tuple[Hashable, ...], StateLayout] = {}
        self._bound: dict[int, tuple[Optimizer, Optimizer]] = {}

    @property
    def trained(self) -> tuple[bool, ...]:
        """For each parameter, whether it is trained now."""
        return trained_among(self.params)

    @property
    def tree(self) -> Any:
        """The parameter tree, with `Param`s as leaves."""
        return self.places.tree(self.params)

    @property
    def batch_starts(self) -> int:
        """The index of a program's first batch argument: after ops, parameters and any state."""
        return 3 if self.has_state else 2

    def values(self) -> list[Any]:
        """Return the parameters as values of the interpreter."""
        if True not in self.in_parts:
            return mirrors(self.params, self.interpreter)
        return [param.mirror(self.interpreter, parts=parts) for param, parts in zip(self.params, self.in_parts)]

    @property
    def in_parts(self) -> tuple[bool, ...]:
        """For each parameter, whether its values on the interpreter are per-rank shards; see `sharding`."""
        return self._in_parts

    def parts_among(self, params: Sequence[Param]) -> list[bool]:
        """Return `in_parts` for some of the parameters; nothing if it is False for all."""
        if True not in self._in_parts:
            return []
        found = dict(zip(map(id, self.params), self._in_parts))
        return [found[id(param)] for param in params]

    def put(self, array: Any, *, parts: bool) -> Any:
        """Put an array shaped like a parameter on the interpreter, sharded if `parts`."""
        return placed(self.interpreter, array) if parts else self.interpreter.put(array)

    def host(self, ref: Any) -> Any:
        """Return a value of the interpreter as an array that the caller owns."""
        return owned(self.interpreter.get(ref))

    # The program's own state ----------------------------------------------------------------------------------------

    def get_state(self) -> Any:
        """Return the program's state as a tree of arrays that the caller owns."""
        return unflatten(self.structure, [self.host(leaf) for leaf in self.state])

    def set_state(self, state: Any) -> None:
        """Overwrite the program's state. Structure, shapes and dtypes are checked before anything changes."""
        leaves = align(self.structure, state, "the trainer's state", "the new state")
        self.state = self._fitting_state("the values of the new state", leaves)

    def _state_types(self) -> dict[str, tuple[Any, DType]]:
        names = structure_paths(self.structure)
        return {name: (ref.shape, ref.dtype) for name, ref in zip(names, self.state)}

    def _fitting_state(self, what: str, leaves: Sequence[Any]) -> list[Any]:
        """Return copies of `leaves`, checked against the types of the current state; integers are accepted as
        floats."""
        types, refs = self._state_types(), []
        for leaf, (_, dtype) in zip(leaves, types.values()):
            array = snapshot(leaf)
            if is_float(dtype) and array.dtype.kind in "iu":
                array = array.astype(np.float64)
            refs.append(self.interpreter.put(array))
        require_fit(what, types, dict(zip(types, refs)))
        return refs

    # Optimizers -----------------------------------------------------------------------------------------------------

    def bound(self, optimizer: Optimizer) -> Optimizer:
        """Bind the optimizer's groups to these parameters; see `Optimizer.bound`."""
        require_optimizer(optimizer)
        kept = self._bound.get(id(optimizer))
        if kept is None:
            kept = optimizer, optimizer.bound(self.places.all_paths)
            if kept[1] is not optimizer:  # the optimizer is kept too, so that its id is not reused
                if len(self._bound) == _LAYOUTS:
                    self._bound.clear()
                self._bound[id(optimizer)] = kept
        return kept[1]

    def layout(self, optimizer: Optimizer, trained: tuple[bool, ...] | None = None) -> StateLayout:
        """Return the layout of the optimizer state for the `trained` parameters, by default those that are trained
        now."""
        return self.layout_of_bound(self.bound(optimizer), self.trained if trained is None else trained)

    def layout_of_bound(self, optimizer: Optimizer, trained: tuple[bool, ...]) -> StateLayout:
        """Return `layout` of an optimizer that `bound` returned."""
        key = (optimizer.program_key, trained)
        layout = self._layouts.get(key)
        if layout is None:
            moved = [(name, param) for name, param, wanted in zip(self.names, self.params, trained) if wanted]
            types: list[tuple[Any, DType]] = [(param.shape, param.dtype) for _, param in moved]
            layout = StateLayout.of(optimizer, [name for name, _ in moved], types)
            if len(self._layouts) == _LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = layout
        return layout

    def init_optim(self, optimizer: Optimizer) -> OptimizerState:
        """Return the initial state of an optimizer: t = 0, and its declared slots for each trained parameter."""
        layout = self.layout(optimizer)
        bound = self.bound(optimizer)
        values = tuple(
            tuple([self._first_moment(slot, bound.at(each.path), each.shape) for slot in slots])
            for each, slots in zip(layout.parameters, layout.declared(bound))
        )
        return OptimizerState.on(self.interpreter, 0, values, layout)

    def _first_moment(self, slot: optim.Slot, optimizer: Optimizer, of: Shape) -> Any:
        shape: Any = slot.shape  # the shape of a parameter, so it has only numbers
        ranks = self.interpreter.mesh.size(DATA) if self._zero else 1
        if ranks != 1 and is_shared(of, optimizer):
            shape = part_shape(shape, ranks)
        return self.interpreter.fill(Constant(slot.fill), shape, slot.dtype)

    def export_optim(self, optimizer: Optimizer, state: OptimizerState) -> OptimizerValues:
        """Return an optimizer's state on these parameters as arrays that the caller owns."""
        layout = self.layout(optimizer)
        require_state(state, layout)
        names = [each.path for each in layout.parameters]
        return OptimizerValues(layout.optimizer, state.t, dict(zip(names, state.slots, strict=True)))

    def unfetched_optim(self, optimizer: Optimizer, state: OptimizerState) -> OptimizerValues:
        """Return the same as `export_optim`, with tensors that are fetched when read; see `Unfetched`."""
        layout = self.layout(optimizer)
        require_state(state, layout)
        names, slots = [each.path for each in layout.parameters], state.unfetched()
        return OptimizerValues(layout.optimizer, state.t, dict(zip(names, slots, strict=True)))

    def import_optim(self, optimizer: Optimizer, saved: OptimizerValues) -> OptimizerState:
        """Return the state that `export_optim` exported. Raises UsageError if it does not fit optimizer and
        parameters."""
        layout = self.layout(optimizer)
        if saved.name != layout.optimizer:
            raise UsageError(f"the saved optimizer state is that of {saved.name}, not of {layout.optimizer}")
        what = f"the saved moments of {saved.name}"
        held = self.places.collapsed(
            saved.slots,
            what,
            lambda a, b: len(a) == len(b) and all(map(same_bits, a, b)),
            ", or take the parameters alone and begin with a new state",
        )
        expected = {f"{each.path} slot {i}": slot for each in layout.parameters for i, slot in enumerate(each.slots)}
        found = {f"{n} slot {i}": slot for n, each in held.items() for i, slot in enumerate(each)}
        require_fit(what, expected, found)
        bound = self.bound(optimizer)
        slots = (
            tuple(self._put_slot(x, bound.at(each.path), each) for x in held.get(each.path, ()))
            for each in layout.parameters
        )
        return OptimizerState.on(self.interpreter, saved.t, tuple(slots), layout)

    def _put_slot(self, array: Any, optimizer: Optimizer, of: TrainedParameter) -> Any:
        """Put a slot on the interpreter; if the ranks shard it, each gets its part, as after a step."""
        ranks = self.interpreter.mesh.size(DATA) if self._zero else 1
        if ranks != 1 and array.shape == tuple(of.shape) and is_shared(of.shape, optimizer):
            return placed(self.interpreter, array)
        return self.interpreter.put(np.array(array))

    # Export and restore ---------------------------------------------------------------------------------------------

    def export(self) -> TrainerValues:
        """Return all that the next step depends on except loss, options and optimizer, as arrays that the caller
        owns."""
        return TrainerValues(
            {name: np.array(param.value) for name, param in zip(self.names, self.params)},
            dict(zip(structure_paths(self.structure), map(self.host, self.state))),
            self.steps_taken,
            {name: self.export_optim(_NAMED[name], state) for name, state in self.moments.items()},
            self.places.tied,
        )

    def unfetched(self) -> TrainerValues:
        """Return the same as `export`, with tensors that are fetched when read; see `Unfetched`."""
        return TrainerValues(
            {name: param.unfetched() for name, param in zip(self.names, self.params)},
            dict(zip(structure_paths(self.structure), map(self.host, self.state))),
            self.steps_taken,
            {name: self.unfetched_optim(_NAMED[name], state) for name, state in self.moments.items()},
            self.places.tied,
        )

    def restore(self, saved: TrainerValues) -> None:
        """Restore the state that `export` returned. Everything, dtypes included, is checked before anything changes.

        Values saved for several places that are one shared parameter here must be equal.
        """
        values = self.places.collapsed(saved.params, "the saved parameters", same_bits)
        require_fit(
            "the saved parameters",
            {name: (param.shape, param.dtype) for name, param in zip(self.names, self.params)},
            values,
            saved.tied,
        )
        state_names = structure_paths(self.structure)
        require_fit("the saved values of the state", self._state_types(), saved.state)
        for name in saved.moments:
            if name not in _NAMED:
                raise UsageError(f"there are saved moments of {name!r}; a trainer keeps those of {', '.join(_NAMED)}")
        moments = {name: self.import_optim(_NAMED[name], values) for name, values in saved.moments.items()}
        state = [self.interpreter.put(snapshot(saved.state[name])) for name in state_names]
        commit = Commit()
        for name, param, parts in zip(self.names, self.params, self.in_parts):
            if parts:
                param.prepare_parts(commit, self.interpreter, values[name])
            else:
                param.prepare(commit, param.checked(values[name]))
        commit.set(self, "state", state)
        commit.set(self, "moments", moments)
        commit.set(self, "steps_taken", saved.steps_taken)
        commit.run()
