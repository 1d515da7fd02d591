"""`StepLayout`: a training step, and its parts, as flat programs, with the order of their inputs and outputs.

The programs are pure: they take parameters, optimizer state and batch, and return new ones. The caller commits the
result of a step, or drops it. The checker, the recorder and the memory prediction run the same programs as a trainer.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain, pairwise
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias, final

from ..interpreters.derivatives import row_gradients, run_row_on_tape
from ..interpreters.interpreter import BaseInterpreter
from ..interpreters.tape import Node
from ..ops.errors import ProgramError, ShapeError
from ..ops.places import Places
from ..ops.program import loss_and_aux
from ..ops.trees import Structure, first_difference, flatten, structure_paths, unflatten
from ..ops.types import Shape, TensorType, dtype_name, show_shape
from .clip import global_norm
from .composed_update import ComposedUpdate, Update
from .optim import Optimizer
from .row_terms import Divisor, counts
from .saved import require_same_types
from .sharding import DATA, beneath, gathered, is_shared, joined, part, part_of_sum

UPDATE = "update"
"""The region in which a step clips its gradients and updates its parameters."""

Clip = Callable[[Any, Sequence[Any]], Sequence[Any]]

Row: TypeAlias = "tuple[list[Any], Structure]"
"""The outputs of a flat program: the leaves of its result, and the structure of (the first of) them."""


class Stepped(NamedTuple):
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
class StepLayout:
    """The inputs and outputs of a step, in order, and its programs.

    Inputs: the parameters, each once, the leaves of the program's own state and of the batch, the optimizer's slots
    parameter by parameter, and its scalars. Outputs: loss, metrics and new state, the new trained parameters, and their
    new slots. Without an optimizer there are no slots, scalars and new parameters.

    loss        the user's program, `(ops, params, [state,] *batch)`
    places      the places of the parameters in its tree: a shared parameter is one ref at all its places, so that its
                gradient is the sum over them
    trained     for each parameter, whether it is trained
    state       the structure of the program's own state; None for a program without one
    batch       the structure of the tuple of its batch arguments
    key         distinguishes the layouts of one trainer; None if unknown
    slots       the number of optimizer slots of each trained parameter
    scalars     the names of the optimizer's scalars of each step
    weigh       the weight of a part of a batch, if they are computed one by one: the metric of this name, or the
                divisor of the loss; None: a number given as input. See `accumulate`
    zero        the level of ZeRO, see `sharding`
    whole       for each sharded parameter its full shape, None for the others
    norm        whether the last output of a step is the norm of all gradients
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
    weigh: str | Divisor | None = None
    norm: bool = False
    zero: int = 0
    whole: tuple[Shape | None, ...] = ()

    # Inputs and outputs -----------------------------------------------------------------------------------------

    @cached_property
    def counts(self) -> tuple[int, int, int, int, int]:
        """The number of inputs that are parameters, leaves of the state, leaves of the batch, slots and scalars."""
        state = 0 if self.state is None else self.state.num_leaves
        return len(self.places), state, self.batch.num_leaves, sum(self.slots), len(self.scalars)

    @cached_property
    def moved(self) -> tuple[int, ...]:
        """The indices of the trained parameters."""
        return tuple([i for i, wanted in enumerate(self.trained) if wanted])

    @cached_property
    def _bounds(self) -> tuple[slice, ...]:
        """For each trained parameter, the slice of the inputs that holds its slots."""
        first = sum(self.counts[:3])
        return tuple([slice(*ends) for ends in pairwise(accumulate(self.slots, initial=first))])

    @cached_property
    def _moments(self) -> tuple[slice, ...]:
        """For each trained parameter, the slice of its new slots in the outputs from the first new slot on."""
        return tuple([slice(*ends) for ends in pairwise(accumulate(self.slots, initial=0))])

    @cached_property
    def _wanted(self) -> tuple[bool, ...]:
        """For each of the parameters, state and batch, whether its gradient is wanted."""
        return (*self.trained, *[False] * sum(self.counts[1:3]))

    def donated(self, alone: Sequence[bool] = (), *, slots: bool = True) -> Mapping[int, bool]:
        """Return the inputs that results may overwrite, by index: those that a training loop donates in each step.

        These are the trained parameters, False for one that others may hold (where `alone` has False for it), and with
        `slots` the optimizer's state. See `BaseProgram`.
        """
        if all(alone):
            return self._donated[slots]
        return self._donated[slots] | dict(zip(self.moved, alone))

    @cached_property
    def _donated(self) -> tuple[MappingProxyType[int, bool], MappingProxyType[int, bool]]:
        """`donated` without and with slots, where nobody else holds a parameter."""
        first = sum(self.counts[:3])
        parameters = dict.fromkeys(self.moved, True)
        slots = dict.fromkeys(range(first, first + self.counts[3]), True)
        return MappingProxyType(parameters), MappingProxyType(parameters | slots)

    def pack(
        self, parameters: Iterable[Any], state: Iterable[Any], batch: Iterable[Any], slots: Any = (), scalars: Any = ()
    ) -> tuple[Any, ...]:
        """The flat inputs of the programs; `slots` are those of each trained parameter."""
        return (*parameters, *state, *batch, *chain.from_iterable(slots), *scalars)

    def unpack(self, outputs: Sequence[Any], structure: Structure) -> Stepped:
        """The outputs of a step, unpacked."""
        end = structure.num_leaves
        split = end + len(self.moved)
        moments = tuple(outputs[split:])
        slots = tuple([moments[each] for each in self._moments])
        loss, metrics, state = unflatten(structure, outputs[:end])
        return Stepped(loss, metrics, state, outputs[end:split], slots, outputs[-1] if self.norm else None)

    def tree(self, ops: Any, *row: Any) -> Any:
        """Return the step's outputs, or without an optimizer the loss and metrics, as a pytree."""
        outputs, structure = self.program(ops, *row)
        return unflatten(structure, outputs) if self.optimizer is None else tuple(self.unpack(outputs, structure))

    def input_names(self, batch: Sequence[str]) -> list[str]:
        """Return `params.<path>`, `state.<path>`, the names of the batch's leaves, `slots.<path>.<i>`, the scalars."""
        trained = [self.places.names[i] for i in self.moved]
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
        trained = [self.places.names[i] for i in self.moved] if self.optimizer is not None else []
        return [
            *[named(("loss", "metrics", "state")[int(part)], rest) for part, _, rest in parts if int(part) < 3],
            *[named("params", path) for path in trained],
            *[f"slots.{path}.{i}" for path, count in zip(trained, self.slots) for i in range(count)],
        ]

    # The programs ---------------------------------------------------------------------------------------------------

    @property
    def program(self) -> Callable[..., Row]:
        """The step, or without an optimizer the forward pass."""
        return self.forward if self.optimizer is None else self.step

    def arguments(self, row: Sequence[Any]) -> tuple[Any, ...]:
        """Return the trees that are the arguments of the user's program."""
        first, state, batch, _, _ = self.counts
        params, last = self.places.tree(row[:first]), first + state
        trees = unflatten(self.batch, row[last : last + batch])
        return (params, *trees) if self.state is None else (params, unflatten(self.state, row[first:last]), *trees)

    def value(self, ops: Any, *row: Any) -> Row:
        """Return the result of the user's program on (parameters, state, batch), without differentiation."""
        return self._undifferentiated(ops, lambda tape, *refs: self.loss(tape, *self.arguments(refs)), row)

    def forward(self, ops: Any, *row: Any) -> Row:
        """Compute (parameters, state, batch) -> (loss, metrics), without differentiation."""
        return self._undifferentiated(ops, lambda tape, *refs: self._run(tape, *refs)[:2], row)

    def gradient(self, ops: Any, *row: Any) -> Row:
        """Compute (parameters, state, batch) -> (loss, metrics), and the gradients of the trained parameters."""
        values, structure, gradients = self._gradients(ops, lambda tape, *refs: self._run(tape, *refs)[:2], row)
        return [*values, *gradients], structure

    def step(self, ops: BaseInterpreter[Any], *row: Any) -> Row:
        """Compute (parameters, state, batch, slots, scalars) -> (loss, metrics, state), new trained parameters, new
        slots."""
        refs = row[: len(self._wanted)]
        shares = self._shares(ops)
        run = self._unsummed if shares else self._run
        values, structure, gradients = self._gradients(ops, run, refs, varied=shares)
        return [*values, *self._updated(ops, row, gradients, shares)], structure

    @property
    def _unsummed(self) -> Callable[..., Any]:
        """Return `_run` for parameters that already vary over the ranks, so their gradients stay unsummed."""
        return replace(self, loss=self.loss.unsummed())._run  # type: ignore[attr-defined]

    def _updated(self, ops: Any, row: tuple[Any, ...], gradients: Sequence[Any], unsummed: bool) -> Any:
        if unsummed and (self.clip is not None or self.norm):
            gradients, unsummed = [ops.all_reduce(gradient, axis=DATA) for gradient in gradients], False
        return ops.region(UPDATE, self._update, row, gradients, unsummed)

    def _gradients(
        self, ops: Any, f: Callable[..., Any], row: Sequence[Any], *, varied: bool = False
    ) -> tuple[list[Any], Structure, list[Any]]:
        """Run `row_gradients` of f. If `varied`, parameters already vary over the ranks and the tape sums no
        gradients."""
        outer, refs = self._gathered(ops, row)
        if varied:
            first = self.counts[0]
            refs = (*[outer.vary(x, axis=DATA) if x.dtype.kind in "fO" else x for x in refs[:first]], *refs[first:])
        values, structure, gradients = row_gradients(outer, f, refs, self._wanted)
        return beneath(outer, ops, values), structure, beneath(outer, ops, gradients)

    def _undifferentiated(self, ops: Any, f: Callable[..., Any], row: Sequence[Any]) -> Row:
        outer, refs = self._gathered(ops, row)
        _, _, outputs, structure = run_row_on_tape(outer, f, refs, (False,) * len(row))
        return beneath(outer, ops, [node.value for node in outputs]), structure

    @property
    def of_whole(self) -> StepLayout:
        """The same layout for parameters that are not sharded."""
        return replace(self, whole=()) if self.whole else self

    def _gathered(self, ops: Any, row: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        return gathered(ops, row, self.whole)

    def _shares(self, ops: Any) -> bool:
        """Whether the optimizer state is sharded over the ranks."""
        return bool(self.zero) and _several(ops)

    def part(self, ops: BaseInterpreter[Any], *row: Any) -> Row:
        """Compute a part of a batch: (parameters, state, batch, sums, number, weight) -> (loss, metrics, state),
        weight, sums.

        The sums accumulate weight times gradient of the trained parameters over the parts so far; on a mesh, over a
        rank's own rows. The weight is the given one, or computed as `weigh` says.
        """
        first = len(self._wanted)
        *sums, number, weight = row[first:]
        several = _several(ops)
        with ops.in_part(number):
            run = self._unsummed if several else self._run
            values, structure, gradients = self._gradients(ops, run, row[:first], varied=several)
        if isinstance(self.weigh, Divisor):
            outer, refs = self._gathered(ops, row[:first])
            types = [TensorType(ref.shape, ref.dtype) for ref in refs]
            (count,) = beneath(outer, ops, [self.weigh.value(outer, self.of_whole.forward, refs, types)])
            weight = ops.cast(count, dtype=dtype_name(values[0].dtype))
        elif self.weigh is not None:
            metrics = unflatten(structure, values)[1]
            if self.weigh not in metrics or len(metrics[self.weigh].shape):
                there = ", ".join(metrics) or "none"
                raise ProgramError(
                    f"accumulate weighs the parts of a batch by the metric {self.weigh!r}, a scalar that the loss must "
                    f"give in Aux(metrics=); it gives {there}"
                )
            weight = ops.cast(metrics[self.weigh], dtype=dtype_name(values[0].dtype))
        new = [ops.add(total, self._weighed(ops, weight, values[0], g)) for total, g in zip(sums, gradients)]
        return [*values, weight, *new], structure

    def _weighed(self, ops: Any, weight: Any, loss: Any, gradient: Any) -> Any:
        """Return weight·gradient, or 0 for a part in which nothing counts."""
        product = ops.mul(ops.broadcast_to(weight, shape=gradient.shape), gradient)
        if self.weigh is None:
            return product
        zero = ops.full(shape=gradient.shape, value=0.0, dtype=gradient.dtype)
        return ops.select(ops.broadcast_to(counts(ops, weight, loss), shape=gradient.shape), product, zero)

    def apply(self, ops: BaseInterpreter[Any], *row: Any) -> Row:
        """Compute (parameters, slots, scalars, sums, weight) -> new trained parameters and slots; gradients are
        sums/weight.

        On a mesh, the sums are reduced over the ranks here, once for all parts.
        """
        params, state, batch, slots, scalars = self.counts
        head, rest = row[:params], row[params : params + slots + scalars]
        *sums, weight = row[params + slots + scalars :]
        whole = (*head, *[None] * (state + batch), *rest)
        gradients = [ops.div(total, ops.broadcast_to(weight, shape=total.shape)) for total in sums]
        return self._updated(ops, whole, gradients, _several(ops)), flatten((None, None, None))[1]

    def _update(self, ops: Any, row: tuple[Any, ...], gradients: Sequence[Any], unsummed: bool = False) -> list[Any]:
        """Return new parameters and slots; `unsummed` gradients cover a rank's own rows only."""
        assert self.optimizer is not None
        norm = [self._norm(ops, gradients)] if self.norm else []
        if self.clip is not None:
            gradients = self.clip(ops, gradients)
        scalars = dict(zip(self.scalars, row[sum(self.counts[:4]) :]))
        composed = self._composed
        if not composed.given_up and ops.fuses:
            place = ops.cursor.mark()
            with composed as updates:  # if composing fails here, the ops are bound one by one
                return self._moved(ops, row, gradients, scalars, updates, unsummed) + norm
            ops.cursor.rewind(place)
        return self._moved(ops, row, gradients, scalars, [member.update for member in self._members], unsummed) + norm

    def _norm(self, ops: Any, gradients: Sequence[Any]) -> Any:
        return global_norm(ops, gradients) if gradients else ops.full(shape=(), value=0.0)

    @cached_property
    def _members(self) -> tuple[Optimizer, ...]:
        """For each trained parameter, its optimizer."""
        assert self.optimizer is not None
        return tuple([self.optimizer.at(self.places.names[i]) for i in self.moved])

    @cached_property
    def _composed(self) -> ComposedUpdate:
        return ComposedUpdate(self._members)

    def _moved(
        self,
        ops: Any,
        row: tuple[Any, ...],
        gradients: Sequence[Any],
        scalars: Mapping[str, Any],
        updates: Sequence[Update],
        unsummed: bool = False,
    ) -> list[Any]:
        """Return new parameters, then new slots."""
        optimizer = self.optimizer
        assert optimizer is not None
        new: list[Any] = []
        slots: list[Any] = []
        shares = self._shares(ops)
        if unsummed:  # all before the first is read, so that the collectives can overlap
            gradients = [
                part_of_sum(ops, g) if shares and is_shared(g.shape, member) else ops.all_reduce(g, axis=DATA)
                for g, member in zip(gradients, self._members)
            ]
        for i, gradient, bounds, member, update in zip(self.moved, gradients, self._bounds, self._members, updates):
            held = row[bounds]
            own = scalars if member is optimizer else optimizer.scalars_at(self.places.names[i], scalars)
            old, whole = row[i], self.whole[i] if self.whole else None
            shape = old.shape if whole is None else whole
            shared = shares and is_shared(shape, member)
            if whole is not None and not shared:
                old = joined(ops, old, shape)
            if shared:
                old = part(ops, old) if whole is None else old
                gradient = gradient if unsummed else part(ops, gradient)
                held = tuple([slot if _is_part(slot, shape) else part(ops, slot) for slot in held])
            value, after = update(ops, old, gradient, held, own)
            after = tuple(after)
            if len(after) != len(held):
                raise ProgramError(
                    f"{member.name} gives {len(after)} new slots for {self.places.names[i]}, for which it declares "
                    f"{len(held)}; its update must return as many as its slots"
                )
            if whole is None:
                new.append(joined(ops, value, shape) if shared else value)
            else:
                new.append(value if shared else part(ops, value))
            slots += after
        return new + slots

    def _run(self, ops: Any, *row: Any) -> tuple[Any, dict[str, Any], Any]:
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
        require_same_types(ops, structure_paths(self.state), row[first : first + held], flatten(aux.state)[0])
        return value, dict(aux.metrics), aux.state


def _several(ops: Any) -> bool:
    """Whether a batch is divided over several ranks, or over a symbolic number of them."""
    size = ops.mesh.size(DATA)
    return not (isinstance(size, int) and size == 1)


def _is_part(slot: Any, shape: Any) -> bool:
    """Whether a slot is already a rank's part; one that was just put here is whole."""
    return len(slot.shape) == 1 and (not isinstance(slot.shape[0], int) or tuple(slot.shape) != tuple(shape))


def named(part: str, path: str) -> str:
    """Return the name of a leaf of one of the trees of a step."""
    return f"{part}.{path}" if path else part
