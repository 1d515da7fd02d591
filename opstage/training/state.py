"""`TrainerState`: parameters, the program's own state and the optimizers' moments, exported and restored whole.

`OptimizerState` is the state of one optimizer, and knows the optimizer and parameters that it belongs to.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from itertools import compress
from typing import Any, NamedTuple, TypeAlias, final

import numpy as np

from .. import optim
from ..api import owned, snapshot
from ..distributed.ranks import on_mesh
from ..init import Constant
from ..interpreters.registry import make_interpreter
from ..ops.array_conversion import as_numpy
from ..ops.errors import UsageError, a_type
from ..ops.tied_parameters import Places
from ..ops.trees import align, flatten, lists_as_arrays, show_path, structure_paths, unflatten
from ..ops.types import DType, Shape, TensorType, is_float
from ..optim import Optimizer, Slot
from ..options import Options
from ..transforms.anomaly import watched
from ..transforms.base_program import BaseProgram
from ..transforms.interpreter import BaseInterpreter
from .commit import Commit
from .param import Param, is_trained, mirrors
from .parameters import as_param, require_apart, requires_grad_flags, same_bits
from .sharding import (
    DATA,
    fetch_lazily,
    fetch_whole,
    is_parameter_sharded,
    is_state_sharded,
    put_shards,
    shard_shape,
)
from .snapshot import Array, OptimizerValues, TrainerValues, Unfetched, require_fit

Values: TypeAlias = "tuple[tuple[Any, ...], ...]"
"""The slots of each trained parameter."""


class TrainedParameter(NamedTuple):
    """A parameter that an optimizer updates, and the types of its slots."""

    path: str
    shape: Shape
    dtype: DType
    slots: tuple[tuple[Shape, DType], ...]


class StateLayout(NamedTuple):
    """The owner of a state: the optimizer by its `state_name`, and the trained parameters in order."""

    optimizer: str
    parameters: tuple[TrainedParameter, ...]

    @classmethod
    def of(cls, optimizer: Optimizer, names: Sequence[str], types: Sequence[tuple[Shape, DType]]) -> StateLayout:
        """Return the layout of the state of `optimizer` for parameters of these paths and types."""
        parameters = [
            TrainedParameter(name, shape, dtype, tuple([(slot.shape, slot.dtype) for slot in slots]))
            for name, (shape, dtype), slots in zip(names, types, optimizer.init(types, names), strict=True)
        ]
        return cls(optimizer.state_name, tuple(parameters))

    def declared(self, optimizer: Optimizer) -> list[tuple[Slot, ...]]:
        """Return the slots that `optimizer`, which must have this layout, declares for the parameters."""
        return optimizer.init([each[1:3] for each in self.parameters], [each.path for each in self.parameters])

    def require(self, other: StateLayout) -> None:
        """Raise a UsageError that says how layout `other` differs from this one."""
        if other.optimizer != self.optimizer:
            raise UsageError(
                f"the optimizer state is that of {other.optimizer}, but the optimizer is {self.optimizer}; "
                "make its own with init_optim"
            )
        expected, found = (
            {each.path: TensorType(each.shape, each.dtype) for each in layout.parameters} for layout in (self, other)
        )
        what = f"the parameters of the state of {self.optimizer}, against those that are trained here,"
        require_fit(what, {path: (type_.shape, type_.dtype) for path, type_ in expected.items()}, found)
        if list(expected) != list(found):
            raise UsageError(f"{what} come in another order; make a state for this trainer with init_optim")
        for mine, theirs in zip(self.parameters, other.parameters):
            if mine.slots != theirs.slots:
                raise UsageError(
                    f"the state of {self.optimizer} has {len(theirs.slots)} slots for {show_path(mine.path)} that are "
                    f"not the {len(mine.slots)} that it is declared with now; make a state with init_optim"
                )


@final
class OptimizerState:
    """The state of an optimizer: the number of steps taken and each trained parameter's slots (moments).

    t        steps taken
    layout   the optimizer and parameters that it belongs to; a step rejects a state of others

    `init_optim` and steps create it. `advance` updates it in place, moments included; `step_with` and `train_step`
    leave it unchanged and return a new one. Copies and pickles have their own moments. The moments live on the
    interpreter of the trainer that made them; another trainer of the same parameters may continue from them.
    """

    __slots__ = ("t", "layout", "_held")

    def __init__(self, t: int, slots: Sequence[Sequence[Any]], layout: StateLayout | None = None):
        """Build from host arrays, which are copied. A state without a layout is rejected by every optimizer."""
        self.t = t
        self.layout = layout
        values = tuple([tuple([np.array(slot) for slot in each]) for each in slots])
        self._held: tuple[BaseInterpreter[Any] | None, Values] = None, values  # whose values they are; None: arrays

    @classmethod
    def on(cls, home: BaseInterpreter[Any], t: int, values: Values, layout: StateLayout) -> OptimizerState:
        """Build from values of the interpreter `home`; the caller must hold no other reference to them."""
        state = cls(t, (), layout)
        state._held = home, values
        return state

    @property
    def slots(self) -> Values:
        """Return the slots of each trained parameter, as arrays that the caller owns."""
        home, values = self._held
        if home is None:
            return tuple([tuple([np.array(slot) for slot in each]) for each in values])
        assert self.layout is not None
        types = [each.slots for each in self.layout.parameters]
        return tuple([tuple([_whole(home, ref, *t) for ref, t in zip(*pair)]) for pair in zip(values, types)])

    def unfetched(self) -> Values:
        """Return the current `slots`, each fetched to the host when it is read; see `Param.unfetched`."""
        held, (home, values) = self._held, self._held
        assert self.layout is not None

        def one(ref: Any, shape: Any, dtype: DType) -> Unfetched:
            if home is None:
                return Unfetched(shape, dtype, lambda: ref, lambda: self._held is held)
            return fetch_lazily(home, ref, shape, dtype, lambda: self._held is held)

        types = [each.slots for each in self.layout.parameters]
        return tuple([tuple([one(ref, *t) for ref, t in zip(*pair)]) for pair in zip(values, types)])

    def values(self, home: BaseInterpreter[Any]) -> Values:
        """Return the slots as values of `home`: those that the state holds, or copies put there."""
        here, values = self._held
        return values if here is home else tuple([tuple(map(home.put, each)) for each in self.slots])

    def prepare(self, commit: Commit, home: BaseInterpreter[Any], t: int, values: Values) -> None:
        """Add the change to step t, with these values of `home`, to `commit`."""
        commit.set(self, "_held", (home, values))
        commit.set(self, "t", t)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.t, self.slots, self.layout)

    def __repr__(self) -> str:
        if self.layout is None:
            return f"<OptimizerState of nobody, t = {self.t}>"
        return f"<OptimizerState of {self.layout.optimizer} on {len(self.layout.parameters)} parameters, t = {self.t}>"


def _whole(home: BaseInterpreter[Any], ref: Any, shape: Shape, dtype: DType) -> Any:
    """Return a slot, joined from the ranks' parts if it is sharded, as an array that the caller owns; see
    `sharding`."""
    return owned(fetch_whole(home, ref, shape, dtype))


def require_state(state: Any, layout: StateLayout) -> None:
    """Raise a UsageError unless `state` is an optimizer state of this layout."""
    if type(state) is not OptimizerState:
        raise UsageError(
            f"a step takes the optimizer's state before the batch, but got {a_type(state)}; "
            "make it with init_optim(optimizer)"
        )
    if state.layout is None:
        raise UsageError(
            "this optimizer state does not say of which optimizer and parameters it is; make it with init_optim, or "
            "copy one that was made there"
        )
    if state.layout is not layout:
        layout.require(state.layout)


def require_optimizer(optimizer: Any) -> None:
    """Raise a UsageError unless `optimizer` is an Optimizer."""
    if not isinstance(optimizer, Optimizer):
        made = f"{optimizer.__name__} itself" if isinstance(optimizer, type) else a_type(optimizer)
        raise UsageError(f"the optimizer must be one of opstage.optim, such as optim.adam(lr=1e-3), but is {made}")


_LAYOUTS = 8
"""How many layouts a trainer caches. They depend on the optimizer, and a program may make a new one each step."""

# The optimizers behind the steps that keep their own moments; hyperparameters do not change the slots.
_NAMED: dict[str, Optimizer] = {"sgd": optim.sgd(), "adam": optim.adam(), "adamw": optim.adamw()}


class BoundOptimizer(NamedTuple):
    """An optimizer of a trainer's parameters, and the layout of its state.

    slots     how many it has for each trained parameter
    trained   for each parameter, whether it is trained
    params    the trained parameters, and for each whether its values are per-rank shards
    given     the optimizer without its groups bound; stored so that nothing else gets its id
    """

    optimizer: Optimizer
    layout: StateLayout
    slots: tuple[int, ...]
    trained: tuple[bool, ...]
    params: list[Param]
    in_parts: list[bool]
    given: Optimizer


@final
class TrainerState:
    """Parameters, state and moments as values of one interpreter, and the number of steps taken.

    places, names, params    the places of the parameters in their tree, their paths, and each of them once
    state, structure         the program's own state: its leaves, values of the interpreter, and their tree
    has_state                whether the program has one
    batch_starts             the index of a program's first batch argument: after ops, parameters and any state
    in_parts                 for each parameter, whether its values on the interpreter are per-rank shards
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
        self.in_parts = tuple([shares and is_parameter_sharded(p.shape, p.dtype, options.zero) for p in self.params])
        self.has_state = state is not None
        self.batch_starts = 3 if self.has_state else 2
        state_leaves, self.structure = flatten(state)
        self.state = [self.interpreter.put(snapshot(leaf)) for leaf in state_leaves]
        self.moments: dict[str, OptimizerState] = {}
        self._layouts: dict[tuple[Hashable, ...], StateLayout] = {}
        self._bound: dict[int, BoundOptimizer] = {}

    @property
    def trained(self) -> tuple[bool, ...]:
        """Return, for each parameter, whether it is trained now."""
        return tuple(map(is_trained, self.params))

    @property
    def tree(self) -> Any:
        """Return the parameter tree, with `Param`s as leaves."""
        return self.places.tree(self.params)

    def values(self) -> list[Any]:
        """Return the parameters as values of the interpreter."""
        return mirrors(self.params, self.interpreter, self.in_parts)

    def put(self, array: Any, *, parts: bool) -> Any:
        """Put an array shaped like a parameter on the interpreter, sharded if `parts`."""
        return put_shards(self.interpreter, array) if parts else self.interpreter.put(array)

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

    def bind_optimizer(self, optimizer: Optimizer) -> BoundOptimizer:
        """Bind an optimizer's groups to these parameters, and lay out its state for those that are trained now."""
        trained = tuple(map(is_trained, self.params))
        bound = self._bound.get(id(optimizer))
        if bound is None or bound.trained != trained:
            require_optimizer(optimizer)
            own = optimizer.bound(self.places.all_paths)
            layout = self._layout(own, trained)
            slots = tuple([len(each.slots) for each in layout.parameters])
            params, parts = list(compress(self.params, trained)), list(compress(self.in_parts, trained))
            bound = BoundOptimizer(own, layout, slots, trained, params, parts, optimizer)
            if len(self._bound) >= _LAYOUTS:
                self._bound.clear()
            self._bound[id(optimizer)] = bound
        return bound

    def _layout(self, optimizer: Optimizer, trained: tuple[bool, ...]) -> StateLayout:
        key = (optimizer.program_key, trained)
        layout = self._layouts.get(key)
        if layout is None:
            types: list[tuple[Any, DType]] = [(param.shape, param.dtype) for param in compress(self.params, trained)]
            layout = StateLayout.of(optimizer, list(compress(self.names, trained)), types)
            if len(self._layouts) == _LAYOUTS:
                self._layouts.clear()
            self._layouts[key] = layout
        return layout

    def init_optim(self, optimizer: Optimizer) -> OptimizerState:
        """Return the initial state of an optimizer: t = 0, and its declared slots for each trained parameter."""
        bound, layout = self.bind_optimizer(optimizer)[:2]
        values = tuple(
            tuple([self._first_moment(slot, bound.at(each.path), each.shape) for slot in slots])
            for each, slots in zip(layout.parameters, layout.declared(bound))
        )
        return OptimizerState.on(self.interpreter, 0, values, layout)

    def _first_moment(self, slot: Slot, optimizer: Optimizer, of: Shape) -> Any:
        shape: Any = slot.shape  # the shape of a parameter, so it has only numbers
        ranks = self.interpreter.mesh.size(DATA) if self._zero else 1
        if ranks != 1 and is_state_sharded(of, optimizer):
            shape = shard_shape(shape, ranks)
        return self.interpreter.fill(Constant(slot.fill), shape, slot.dtype)

    def export_optim(self, optimizer: Optimizer, state: OptimizerState, *, fetch: bool = True) -> OptimizerValues:
        """Return an optimizer's state on these parameters as arrays that the caller owns; without `fetch`, as tensors
        that are fetched when read, see `Unfetched`."""
        layout = self.bind_optimizer(optimizer).layout
        require_state(state, layout)
        names, slots = [each.path for each in layout.parameters], state.slots if fetch else state.unfetched()
        return OptimizerValues(layout.optimizer, state.t, dict(zip(names, slots, strict=True)))

    def import_optim(self, optimizer: Optimizer, saved: OptimizerValues) -> OptimizerState:
        """Return the state that `export_optim` exported. Raises UsageError if it does not fit optimizer and
        parameters."""
        bound, layout = self.bind_optimizer(optimizer)[:2]
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
        slots = (
            tuple(self._put_slot(x, bound.at(each.path), each) for x in held.get(each.path, ()))
            for each in layout.parameters
        )
        return OptimizerState.on(self.interpreter, saved.t, tuple(slots), layout)

    def _put_slot(self, array: Any, optimizer: Optimizer, of: TrainedParameter) -> Any:
        """Put a slot on the interpreter; if the ranks shard it, each gets its part, as after a step."""
        ranks = self.interpreter.mesh.size(DATA) if self._zero else 1
        if ranks != 1 and array.shape == tuple(of.shape) and is_state_sharded(of.shape, optimizer):
            return put_shards(self.interpreter, array)
        return self.interpreter.put(np.array(array))

    # Export and restore ---------------------------------------------------------------------------------------------

    def export(self, *, fetch: bool = True) -> TrainerValues:
        """Return all that the next step depends on except loss, options and optimizer, as arrays that the caller
        owns; without `fetch`, as tensors that are fetched when read, see `Unfetched`."""
        moments = {name: self.export_optim(_NAMED[name], each, fetch=fetch) for name, each in self.moments.items()}
        return TrainerValues(
            {name: np.array(p.value) if fetch else p.unfetched() for name, p in zip(self.names, self.params)},
            dict(zip(structure_paths(self.structure), map(self.host, self.state))),
            self.steps_taken,
            moments,
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


# The running average of parameters ------------------------------------------------------------------------------------


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

    def average_values(self, held: TrainerState) -> list[Any]:
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
        program = BaseProgram(_move, None, ("average", count), dict.fromkeys(range(count), True))
        moved = interpreter.execute(program, row, held.steps_taken)
        commit = Commit()
        commit.set(self, "_values", tuple(moved))
        commit.run(program.finish)

    def export(self, held: TrainerState) -> dict[str, Array]:
        """Return the average of each parameter by path, as arrays that the caller owns."""
        found = zip(held.names, held.params, self.average_values(held))
        return {
            name: owned(fetch_whole(held.interpreter, value, param.shape, param.dtype)) for name, param, value in found
        }

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


def _move(ops: BaseInterpreter[Any], *row: Any) -> tuple[list[Any], Any]:
    *tensors, share = row
    half = len(tensors) // 2
    new = []
    for e, p in zip(tensors[:half], tensors[half:]):
        step = ops.mul(ops.broadcast_to(share, shape=p.shape), ops.sub(p, e))
        new.append(ops.add(e, step))
    return new, flatten(None)[1]
