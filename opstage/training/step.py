"""`TrainingStep`: a training step, and its parts, as flat programs, with the order of their inputs and outputs.

The programs are pure: they take parameters, optimizer state and batch, and return new ones. The caller commits the
result of a step, or drops it. The checker, the recorder and the memory prediction run the same programs as a trainer.

A step computes gradients, then applies the optimizer to them. What ranks and microbatches change in it stands outside:
`parallel.DataParallel` transforms the loss, `sharding.Sharding` the gradients and updates, and
`accumulate.Microbatches` cuts the step in two programs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, TypeVar, final

from ..ops.errors import ProgramError, ShapeError
from ..ops.primitive import R
from ..ops.protocol import is_ours, loss_and_aux
from ..ops.tied_parameters import Places
from ..ops.trees import Structure, first_difference, flatten, structure_paths, unflatten
from ..ops.types import dtype_name, show_shape
from ..optim import Optimizer
from ..optim.clip import global_norm
from ..optim.optimizer import Updater
from ..transforms.derivatives import row_gradients, run_row_on_tape
from ..transforms.fused_call import NotTraceable, RepeatedPrograms
from ..transforms.interpreter import BaseInterpreter, Interpreter, on_refs
from ..transforms.tape import Node
from .sharding import REPLICATED, Sharding

T = TypeVar("T")

UPDATE = "update"
"""The region in which a step clips its gradients and updates its parameters."""

Clip = Callable[[Any, Sequence[Any]], Sequence[Any]]

Row: TypeAlias = "tuple[list[R], Structure]"
"""The outputs of a flat program: the leaves of its result, and the structure of (the first of) them."""


class StepOutputs(NamedTuple):
    """The outputs of a step: trees of the loss, the metrics and the program's new state, and flat updated values.

    norm   the norm of all gradients before clipping; None unless requested
    """

    loss: Any
    metrics: dict[str, Any]
    state: Any
    parameters: Sequence[Any]
    slots: tuple[tuple[Any, ...], ...]
    norm: Any = None


@final
@dataclass(frozen=True, eq=False)
class TrainingStep:
    """The inputs and outputs of a step, in order, and its programs.

    Inputs: the parameters, each once, the leaves of the program's own state and of the batch, the optimizer's slots
    parameter by parameter, and its scalars. Outputs: loss, metrics and new state, the new trained parameters, and their
    new slots. Without an optimizer it has no slots, scalars and new parameters.

    loss        the user's program, `(ops, params, [state,] *batch)`
    places      the places of the parameters in its tree: a shared parameter is one ref at all its places, so that its
                gradient is the sum over them
    trained     for each parameter, whether it is trained
    state       the structure of the program's own state; None for a program without one
    batch       the structure of the tuple of its batch arguments
    key         distinguishes the steps of one trainer; None if unknown
    slots       the number of optimizer slots of each trained parameter
    scalars     the names of the optimizer's scalars of each step
    norm        whether the last output of a step is the norm of all gradients
    sharding    which parts of parameters and optimizer state each rank stores
    """

    loss: Callable[..., Any]
    places: Places
    trained: tuple[bool, ...]
    state: Structure | None
    batch: Structure
    key: Hashable = None
    optimizer: Optimizer | None = None
    clip: Clip | None = None
    slots: tuple[int, ...] = ()
    scalars: tuple[str, ...] = ()
    norm: bool = False
    sharding: Sharding = REPLICATED

    # Inputs and outputs -----------------------------------------------------------------------------------------

    @cached_property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Return the number of inputs that are parameters, leaves of the state, leaves of the batch, slots and
        scalars."""
        state = 0 if self.state is None else self.state.num_leaves
        return len(self.places), state, self.batch.num_leaves, sum(self.slots), len(self.scalars)

    @cached_property
    def trained_indices(self) -> tuple[int, ...]:
        """Return the indices of the trained parameters."""
        return tuple([i for i, wanted in enumerate(self.trained) if wanted])

    def trained_among(self, parameters: Sequence[T]) -> list[T]:
        """Return what belongs to the trained ones, of something for each parameter."""
        return [parameters[i] for i in self.trained_indices]

    @cached_property
    def _bounds(self) -> tuple[slice, ...]:
        """Return, for each trained parameter, the slice of the inputs that holds its slots."""
        first = sum(self.counts[:3])
        return tuple([slice(*ends) for ends in pairwise(accumulate(self.slots, initial=first))])

    @cached_property
    def _moments(self) -> tuple[slice, ...]:
        """Return, for each trained parameter, the slice of its new slots in the outputs from the first new slot on."""
        return tuple([slice(*ends) for ends in pairwise(accumulate(self.slots, initial=0))])

    @cached_property
    def _wanted(self) -> tuple[bool, ...]:
        """Return, for each of the parameters, state and batch, whether its gradient is wanted."""
        return (*self.trained, *[False] * sum(self.counts[1:3]))

    def donated(self, alone: Sequence[bool] = (), *, slots: bool = True) -> Mapping[int, bool]:
        """Return the inputs that results may overwrite, by index: those that a training loop donates in each step.

        These are the trained parameters, False for one that others may hold (where `alone` has False for it), and with
        `slots` the optimizer's state. See `BaseProgram`.
        """
        if all(alone):
            return self._donated[slots]
        return self._donated[slots] | dict(zip(self.trained_indices, alone))

    @cached_property
    def _donated(self) -> tuple[MappingProxyType[int, bool], MappingProxyType[int, bool]]:
        """`donated` without and with slots, where nobody else holds a parameter."""
        first = sum(self.counts[:3])
        parameters = dict.fromkeys(self.trained_indices, True)
        slots = dict.fromkeys(range(first, first + self.counts[3]), True)
        return MappingProxyType(parameters), MappingProxyType(parameters | slots)

    def pack(
        self, parameters: Iterable[Any], state: Iterable[Any], batch: Iterable[Any], slots: Any = (), scalars: Any = ()
    ) -> tuple[Any, ...]:
        """Return the flat inputs of the programs; `slots` are those of each trained parameter."""
        return (*parameters, *state, *batch, *chain.from_iterable(slots), *scalars)

    def unpack(self, outputs: Sequence[Any], structure: Structure) -> StepOutputs:
        """Return the outputs of a step, unpacked."""
        end = structure.num_leaves
        split = end + len(self.trained_indices)
        moments = tuple(outputs[split:])
        slots = tuple([moments[each] for each in self._moments])
        loss, metrics, state = unflatten(structure, outputs[:end])
        return StepOutputs(loss, metrics, state, outputs[end:split], slots, outputs[-1] if self.norm else None)

    def tree(self, ops: BaseInterpreter[R], *row: R) -> Any:
        """Return the step's outputs, or without an optimizer the loss and metrics, as a pytree."""
        outputs, structure = self.program(ops, *row)
        return unflatten(structure, outputs) if self.optimizer is None else tuple(self.unpack(outputs, structure))

    def input_names(self, batch: Sequence[str]) -> list[str]:
        """Return `params.<path>`, `state.<path>`, the names of the batch's leaves, `slots.<path>.<i>`, the scalars."""
        trained = self.trained_among(self.places.names)
        return [
            *[named("params", path) for path in self.places.names],
            *[named("state", path) for path in ([] if self.state is None else structure_paths(self.state))],
            *(batch if batch else [f"batch[{i}]" for i in range(self.counts[2])]),
            *[f"slots.{path}.{i}" for path, count in zip(trained, self.slots) for i in range(count)],
            *self.scalars,
        ]

    def output_names(self, structure: Structure) -> list[str]:
        """Return `loss`, `metrics.accuracy`, `state.…`, `params.…`, `slots.…` for results of this structure or of
        `tree`."""
        parts = [path.partition(".") for path in structure_paths(structure)]
        trained = self.trained_among(self.places.names) if self.optimizer is not None else []
        return [
            *[named(("loss", "metrics", "state")[int(part)], rest) for part, _, rest in parts if int(part) < 3],
            *[named("params", path) for path in trained],
            *[f"slots.{path}.{i}" for path, count in zip(trained, self.slots) for i in range(count)],
        ]

    # The programs ---------------------------------------------------------------------------------------------------

    @cached_property
    def program(self) -> Callable[..., Row[Any]]:
        """Return the step, or without an optimizer the forward pass."""
        return self.forward if self.optimizer is None else self.step

    def arguments(self, row: Sequence[R]) -> tuple[Any, ...]:
        """Return the trees that are the arguments of the user's program."""
        first, state, batch, _, _ = self.counts
        params, last = self.places.tree(row[:first]), first + state
        trees = unflatten(self.batch, row[last : last + batch])
        return (params, *trees) if self.state is None else (params, unflatten(self.state, row[first:last]), *trees)

    def value(self, ops: BaseInterpreter[R], *row: R) -> Row[R]:
        """Return the result of the user's program on (parameters, state, batch), without differentiation."""
        return self._undifferentiated(ops, lambda tape, *refs: self.loss(tape, *self.arguments(refs)), row)

    def forward(self, ops: BaseInterpreter[R], *row: R) -> Row[R]:
        """Compute (parameters, state, batch) -> (loss, metrics), without differentiation."""
        return self._undifferentiated(ops, lambda tape, *refs: self.loss_and_state(tape, *refs)[:2], row)

    def gradient(self, ops: BaseInterpreter[R], *row: R) -> Row[R]:
        """Compute (parameters, state, batch) -> (loss, metrics), and the gradients of the trained parameters."""
        return self.gradients(ops, row, lambda tape, *refs: self.loss_and_state(tape, *refs)[:2])

    def step(self, ops: BaseInterpreter[R], *row: R) -> Row[R]:
        """Compute (parameters, state, batch, slots, scalars) -> (loss, metrics, state), new trained parameters, new
        slots."""
        outputs, structure = self.gradients(ops, row[: len(self._wanted)])
        end = structure.num_leaves
        return [*outputs[:end], *self.apply_optimizer(ops, row, outputs[end:])], structure

    def gradients(
        self,
        ops: BaseInterpreter[R],
        row: Sequence[R],
        results: Callable[..., Any] | None = None,
        *,
        reduces: bool = True,
    ) -> Row[R]:
        """Compute (parameters, state, batch) -> (loss, metrics, state), or the `results` that begin with the loss, and
        the gradients of the trained parameters. `results` may take more inputs.

        `reduces`: over the ranks, see `reduce_gradients`; otherwise a rank's gradients are those of its own rows.
        """
        run = results or self.loss_and_state

        def program(outer: Any, *refs: Any) -> Row[Any]:
            wanted = (*self._wanted, *[False] * (len(refs) - len(self._wanted)))
            values, structure, gradients = row_gradients(outer, run, refs, wanted)
            return [*values, *(self.reduce_gradients(outer, gradients) if reduces else gradients)], structure

        return self.sharding.on_whole_parameters(ops, program, row, self.counts[0])

    def reduce_gradients(self, ops: Any, gradients: Sequence[Any]) -> Sequence[Any]:
        """Return the sums over the ranks of gradients of their own rows; a rank's shard of the sum where the update
        needs no more."""
        return self.sharding.reduce_gradients(ops, gradients, self._members if self._reduces_to_shards else ())

    @property
    def _reduces_to_shards(self) -> bool:
        """Return whether a rank's shard of a gradient is enough: only the update reads it."""
        return self.optimizer is not None and self.clip is None and not self.norm

    def apply_optimizer(self, ops: BaseInterpreter[R], row: Sequence[R], gradients: Sequence[R]) -> list[R]:
        """Return new trained parameters, their new slots, and with `norm` that of the reduced gradients."""
        return ops.region(UPDATE, self._apply_optimizer, row, gradients)  # type: ignore[no-any-return]

    def _apply_optimizer(self, ops: BaseInterpreter[R], row: Sequence[R], gradients: Sequence[R]) -> list[R]:
        norm = [self._norm(ops, gradients)] if self.norm else []
        if self.clip is not None:
            clip = self.clip
            gradients = clip(ops, gradients) if is_ours(clip) else on_refs(ops, clip, list(gradients))
        fused = self._fused
        if fused.useful and ops.fuses:
            place = ops.cursor.mark()
            with fused as updates:  # if fusing fails here, the ops are bound one by one
                return self._update(ops, row, gradients, updates) + norm
            ops.cursor.rewind(place)
        return self._update(ops, row, gradients, self._updates) + norm

    def _update(
        self, ops: BaseInterpreter[R], row: Sequence[R], gradients: Sequence[R], updates: Sequence[Updater]
    ) -> list[R]:
        optimizer, names = self.optimizer, self.trained_among(self.places.names)
        assert optimizer is not None
        if self.sharding is not REPLICATED:
            updates = self.sharding.shard_updates(
                ops, self.trained_indices, self._members, updates, self._reduces_to_shards
            )
        scalars = dict(zip(self.scalars, row[sum(self.counts[:4]) :]))
        own = [
            scalars if member is optimizer else optimizer.scalars_at(name, scalars)
            for member, name in zip(self._members, names)
        ]
        params, slots = self.trained_among(row), [row[each] for each in self._bounds]
        values, new = update_parameters(ops, updates, params, gradients, slots, own)
        for name, member, before, after in zip(names, self._members, slots, new):
            if len(after) != len(before):
                raise ProgramError(
                    f"{member.name} gives {len(after)} new slots for {name}, for which it declares "
                    f"{len(before)}; its update must return as many as its slots"
                )
        return [*values, *chain.from_iterable(new)]

    def _norm(self, ops: BaseInterpreter[R], gradients: Sequence[R]) -> R:
        return global_norm(ops, gradients) if gradients else ops.full(shape=(), value=0.0)

    @cached_property
    def _members(self) -> tuple[Optimizer, ...]:
        """Return, for each trained parameter, its optimizer."""
        assert self.optimizer is not None
        return tuple([self.optimizer.at(self.places.names[i]) for i in self.trained_indices])

    @cached_property
    def _updates(self) -> Sequence[Updater]:
        return [member.updater for member in self._members]

    @cached_property
    def _fused(self) -> FusedUpdates:
        return FusedUpdates(self._members)

    def _undifferentiated(self, ops: BaseInterpreter[R], f: Callable[..., Any], row: Sequence[R]) -> Row[R]:
        def program(outer: Any, *refs: Any) -> Row[Any]:
            _, _, outputs, structure = run_row_on_tape(outer, f, refs, (False,) * len(refs))
            return [node.value for node in outputs], structure

        return self.sharding.on_whole_parameters(ops, program, row, self.counts[0])

    def loss_and_state(self, ops: Interpreter[R], *row: R) -> tuple[R, dict[str, Any], Any]:
        """Return loss, metrics and new state, in whichever form the user's program returns them."""
        loss, aux = loss_and_aux(self.loss(ops, *self.arguments(row)))
        leaves = [loss] if type(loss) is Node else flatten(loss)[0]
        if len(leaves) != 1:
            raise ProgramError(f"a training program's loss is one scalar; got {len(leaves)} tensors")
        value = ops.adopt(leaves[0])
        if len(value.shape) != 0:
            error = ShapeError(
                f"a training program's loss must be a scalar but is {show_shape(value.shape)}; "
                "reduce it with ops.sum or ops.reduce_mean",
                op="loss",
            )
            error.about = value
            raise error
        if value.dtype.kind not in "fO":
            raise ProgramError(f"a training program's loss must be a float scalar, not {dtype_name(value.dtype)}")
        if self.state is None:
            return value, dict(aux.metrics), None
        difference = first_difference(self.state, flatten(aux.state)[1])
        if difference is not None:
            raise ProgramError(f"the new state is not built like the old one: {difference}")
        first, held, _, _, _ = self.counts
        _require_same_types(ops, structure_paths(self.state), row[first : first + held], flatten(aux.state)[0])
        return value, dict(aux.metrics), aux.state


def _require_same_types(ops: Any, paths: Sequence[str], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raise ShapeError if a new state changes shape or dtype, since the next step would then be another program."""
    for path, old, new in zip(paths, before, after):
        if not hasattr(new, "shape"):
            continue

        def message(path: str = path, old: Any = old, new: Any = new) -> str:
            types = [f"{show_shape(ref.shape)} {dtype_name(ref.dtype)}" for ref in (new, old)]
            return (
                f"the new state{path and f' {path}'} is {types[0]}, but the state that it replaces is {types[1]}: it "
                "must keep its shape and dtype from step to step"
            )

        # symbolic sizes are checked by the step itself: a condition on them would count as a use of the state
        known = all(a == b for a, b in zip(new.shape, old.shape) if isinstance(a, int) and isinstance(b, int))
        if len(new.shape) != len(old.shape) or new.dtype != old.dtype or not known:
            error = ShapeError(message(), op="state")
            error.about = ops.adopt(new)
            raise error


def update_parameters(
    ops: Interpreter[R],
    updates: Sequence[Updater],
    params: Sequence[R],
    gradients: Sequence[R],
    slots: Sequence[Sequence[R]],
    scalars: Sequence[Mapping[str, R]],
) -> tuple[list[R], list[tuple[R, ...]]]:
    """Return the new value and slots of each parameter."""
    new = [update(ops, *each) for update, *each in zip(updates, params, gradients, slots, scalars)]
    return [value for value, _ in new], [tuple(after) for _, after in new]


@final
class FusedUpdates:
    """A context manager for one step that yields each parameter's update as one op, whichever ops it binds. If fusing
    fails, the block ends.

    useful   whether there is something to fuse: no update is one op already, or needs concrete values
    """

    __slots__ = ("useful", "_repeated", "_updates")

    def __init__(self, optimizers: Sequence[Optimizer]):
        """`optimizers` are those of the parameters, in order."""
        self.useful = True
        self._repeated = {id(optimizer): RepeatedPrograms() for optimizer in optimizers}
        fused = {id(each): _fused(self._repeated[id(each)], each) for each in optimizers}
        self._updates = [fused[id(optimizer)] for optimizer in optimizers]

    def __enter__(self) -> Sequence[Updater]:
        for each in self._repeated.values():
            each.begin()
        return self._updates

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> bool:
        recorded = any(each.recorded for each in self._repeated.values())
        if kind is NotTraceable or (kind is None and not recorded):
            self.useful = False
        return kind is NotTraceable


def _fused(repeated: RepeatedPrograms, optimizer: Optimizer) -> Updater:
    updater = optimizer.updater

    def update(
        ops: Any, p: Any, g: Any, slots: tuple[Any, ...], scalars: Mapping[str, Any]
    ) -> tuple[Any, Sequence[Any]]:
        names, count = tuple(scalars), len(slots)

        def program(ops: Any, p: Any, g: Any, *others: Any) -> tuple[Any, ...]:
            value, after = updater(ops, p, g, others[:count], dict(zip(names, others[count:])))
            return (value, *after)

        refs = (p, g, *slots, *scalars.values())
        value, *after = repeated.run(ops, f"{optimizer.name}_update", program, refs)
        return value, after

    return update


def named(part: str, path: str) -> str:
    """Return the name of a leaf of one of the trees of a step."""
    return f"{part}.{path}" if path else part
