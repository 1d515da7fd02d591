"""`data_parallel`: the loss of a whole batch as a per-rank program over that rank's rows.

How the loss of the batch follows from those of the ranks' rows is proved on its trace, see loss_reduction: a mean over
rows becomes the mean of the ranks' means, a sum their sum, and a mean over the rows that count (targets that are not
ignored, weights) is divided by the count over all ranks. Any other loss is evaluated term by term, see terms, or is an
error. Its parameters vary over the ranks, see `sharding.Sharding.on_whole_parameters`: gradients are those of the
rank's own rows, and the step sums them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, NamedTuple, final

from typing_extensions import override

from ..distributed.varying import Varying, VaryingRef
from ..ops.collective import all_mean
from ..ops.dims import DimScope, Verdict, equal, ratio
from ..ops.dispatch import Quietly
from ..ops.errors import MeshError, OpstageError, UsageError
from ..ops.mesh import ALONE, Mesh
from ..ops.protocol import Aux, loss_and_aux
from ..ops.spec import Spec
from ..ops.trees import Structure, flatten, unflatten
from ..ops.types import FLOAT32, TensorType, dtype_name
from ..transforms.interpreter import Refs
from .loss_reduction import DIVISOR, OTHER, Divisor, LossReduction, LossReductions, called, counts, is_state, with_state
from .sharding import DATA
from .sizes import in_numbers
from .terms import ROWS, SUM


def shard_specs(specs: tuple[Any, ...], mesh: Mesh) -> tuple[Any, ...]:
    """Return the Specs of a batch with the constraint that the ranks can divide its rows evenly."""
    size = mesh.size(DATA)
    if size == 1:
        return specs
    leaves, structure = flatten(specs)
    made = [_divided(leaf, size) if isinstance(leaf, Spec) and leaf.entries else leaf for leaf in leaves]
    divided: tuple[Any, ...] = unflatten(structure, made)
    return divided


def _divided(spec: Spec, size: int | str) -> Spec:
    rows = str(spec.entries[0])
    if isinstance(size, int) and rows.isdecimal():
        return spec  # the step itself checks whether they can
    condition = f"{rows if rows.isalnum() else f'({rows})'} % {size} == 0"
    scope = DimScope()
    with suppress(OpstageError):  # a Spec that cannot be read is refused where it is bound
        share = spec.bind(scope, FLOAT32).shape[0] % (scope.dim(size) if isinstance(size, str) else size)
        if condition in spec.where or equal(share, 0) is Verdict.proved:
            return spec
    return spec.changed(where=(*spec.where, condition))


class LossPart(NamedTuple):
    """A part of a batch that is computed in parts.

    joins   how what the parts give combines
    rows    those of the whole batch
    sums    over these rows, by slot
    share   the part's share of the rows, a scalar
    """

    joins: LossReduction
    rows: int
    sums: Mapping[int, Any]
    share: Any


@final
class DataParallel:
    """`loss(ops, params, [state,] *batch)` on the ranks of a mesh: each processes its share of the batch's rows.

    loss    the loss of a batch, in training form or in evaluation form
    trees   the number of arguments before the batch: 1, or 2 with a state
    """

    def __init__(self, loss: Callable[..., Any], trees: int):
        self.loss = loss
        self._trees = trees
        self._reductions = LossReductions()
        self._part: LossPart | None = None

    def on(self, part: LossPart | None) -> DataParallel:
        """Return the program of what a part of a batch adds to the loss and the metrics of the batch."""
        made = copy(self)
        made._part = part
        return made

    def __call__(self, ops: Any, *arguments: Any) -> Any:
        part = self._part
        if ops.mesh.is_alone and part is None:  # traced on its own
            return self.loss(ops, *arguments)
        split = frozenset() if _is_alone(ops) else frozenset({DATA})
        outer = Varying(ops, batch=split)
        leaves, structure = flatten(arguments)
        first = len(flatten(arguments[: self._trees])[0])
        params = len(flatten(arguments[0])[0])
        with Quietly(ops.cursor):
            parts = [ops.shard(leaf, axis=DATA) for leaf in leaves[first:]] if split else leaves[first:]

        def varying(outer: Varying, row: Sequence[Any]) -> list[VaryingRef]:
            return [
                *[
                    VaryingRef(leaf, outer, split, copied=split) if leaf.dtype.kind in "fO" else VaryingRef(leaf, outer)
                    for leaf in row[:params]
                ],
                *[VaryingRef(leaf, outer) for leaf in row[params:first]],
                *[VaryingRef(part, outer, split) for part in row[first:]],
            ]

        refs = varying(outer, (*leaves[:first], *parts))
        types = [TensorType(leaf.shape, leaf.dtype) for leaf in (*leaves[:first], *parts)]
        flat = FlatLoss(self.loss, structure)
        found, begun = self._loss_reduction(flat, types, first, ops, varying) if split else _SUMMED, ops.cursor.ordinal
        joins = part.joins if part is not None else found.in_terms()
        if joins is not None:
            loss, aux = self._in_terms(outer, flat, refs, first, joins)
        else:
            joins = found
            if found.divisor is not None:
                outer.quotients = frozenset([begun + ordinal for ordinal in found.divisor.quotients])
            loss, aux = loss_and_aux(self.loss(outer, *unflatten(structure, refs)))
        loss, outer.quotients = outer.adopt(loss), frozenset()
        _require_known(ops.mesh, outer.used_axes)
        if split:
            joins = _require_reduction(joins, summed=joins.sends and DATA not in loss.axes)
        with Quietly(ops.cursor):

            def weighed(divisor: Divisor | None, x: Any) -> VaryingRef | None:
                if divisor is None:
                    return None
                return outer.cast(divisor.value(outer, flat, refs, types), dtype=dtype_name(x.dtype))

            weight = weighed(joins.divisor, loss)
            joined = _require_replicated(_join(outer, loss, joins.loss, weight), "the loss") if split else loss
            metrics = {
                name: _require_replicated(_metric(outer, name, value, joins, weighed), f"the metric {name!r}").value
                for name, value in aux.metrics.items()
            }
            states = [
                _require_replicated(_metric(outer, name, value, joins, weighed), name).value
                for name, value in with_state({}, aux.state).items()
            ]
        return joined.value, Aux(state=unflatten(flatten(aux.state)[1], states), metrics=metrics)

    def _in_terms(
        self, ops: Varying, flat: FlatLoss, refs: Sequence[VaryingRef], first: int, joins: LossReduction
    ) -> tuple[Any, Aux]:
        """Return what the rank's rows add to the loss, the metrics and the state."""
        part, terms = self._part, joins.terms
        assert terms is not None
        ranks = ops.mesh.size(DATA)
        rows = refs[first].shape[0] * ranks if part is None else part.rows
        known: dict[int, VaryingRef] = {} if part is None else {i: ops.adopt(x) for i, x in part.sums.items()}

        def whole(slot: int, x: VaryingRef) -> VaryingRef:
            if slot not in known:
                with Quietly(ops.cursor):
                    known[slot] = _all_sum(ops, x)
            return known[slot]

        def of_part(x: VaryingRef) -> VaryingRef:
            if part is None:
                return x
            with Quietly(ops.cursor):
                share = ops.cast(ops.adopt(part.share), dtype=dtype_name(x.dtype))
                return ops.adopt(ops.mul(x, ops.broadcast_to(share, shape=x.shape)))

        def shared(x: VaryingRef) -> VaryingRef:
            with Quietly(ops.cursor):
                return of_part(ops.adopt(ops.scale(x, c=ratio(1, ranks))))

        loss, values = terms.run(ops, flat, refs, slice(first, len(refs)), rows, whole, shared)
        metrics = {name: value for name, value in values.items() if not is_state(name)}
        state = unflatten(flat.state, [value for name, value in values.items() if is_state(name)])
        return of_part(ops.adopt(loss)) if joins.loss == ROWS else loss, Aux(metrics=metrics, state=state)

    def _loss_reduction(
        self,
        flat: FlatLoss,
        types: Sequence[TensorType],
        first: int,
        ops: Any,
        varying: Callable[[Varying, Sequence[Any]], list[VaryingRef]],
    ) -> LossReduction:
        """Return how the loss combines those of the ranks, as far as that is proved."""

        def of_rank(inner: Any, *row: Any) -> tuple[list[Any], Structure]:
            outer = Varying(inner, batch=frozenset({DATA}))
            outputs, structure = flat(outer, *varying(outer, row))
            return [outer.adopt(ref).value for ref in outputs], structure

        types = in_numbers(types)
        key = tuple([(type_.shape, type_.dtype) for type_ in types])
        with self._reductions.proved(key, flat, types, slice(first, len(types)), ops, ops.mesh, of_rank) as found:
            return found


def _require_reduction(found: LossReduction, *, summed: bool) -> LossReduction:
    """Return the proof itself, unless the program `summed` the loss over the ranks.

    Raises UsageError if there is none, or if ranks would draw otherwise than one rank.
    """
    if found.draws:
        raise UsageError(found.draws)
    if summed:
        return found._replace(loss=ROWS)
    if not found.loss:
        raise UsageError(
            f"the loss cannot be sharded over mesh axis {DATA!r}: how that of a batch follows from "
            f"those of its parts is not known: {found.reason}; make it one number of all ranks with the collectives, "
            "such as opstage.derived.all_mean"
        )
    return found


def _require_known(mesh: Mesh, known: set[str]) -> None:
    """Raise UsageError for a mesh axis of several ranks along which the program divides nothing."""
    for axis, size in mesh.axes:
        if axis not in known and not (isinstance(size, int) and size == 1):
            raise UsageError(
                f"the program does not use mesh axis {axis!r}, so its {size} ranks would all do the same work; "
                f"leave it out of the mesh, shard examples over {DATA!r}, or use the layers of opstage.models.parallel"
            )


def _require_replicated(x: VaryingRef, what: str) -> VaryingRef:
    """Return x, which must be equal on all ranks."""
    if x.axes:
        axes = " and ".join(map(repr, sorted(x.axes)))
        raise MeshError(
            f"{what} differs between the ranks of mesh axis {axes}: each has its own number; sum it with "
            "ops.all_reduce, or take opstage.derived.all_mean",
            op="loss",
        )
    return x


@final
class OneRank(Refs):
    """Hides the mesh: every collective returns its operand, as is right for programs on whole batches, such as
    prediction."""

    __slots__ = ()

    @property
    @override
    def mesh(self) -> Mesh:
        return ALONE


@final
class Replicated:
    """Another program of the parameters, run on whole batches as if there were one rank, on any mesh."""

    def __init__(self, program: Callable[..., Any]):
        self._program = program

    def __call__(self, ops: Any, *arguments: Any) -> Any:
        outer = OneRank(ops)
        leaves, structure = flatten(arguments)
        result = self._program(outer, *unflatten(structure, [outer.wrap(leaf) for leaf in leaves]))
        outputs, built = flatten(result)
        return unflatten(built, [outer.adopt(ref).value for ref in outputs])


_SUMMED = LossReduction(ROWS)
"""For a loss that is equal on all ranks, since its program has already summed over them."""


class FlatLoss:
    """A loss as a flat program of (loss, metrics `with_state`), of the leaves of arguments of this structure.

    state   the structure of the new state, once it ran
    """

    def __init__(self, loss: Callable[..., Any], structure: Structure):
        self._loss, self._structure = loss, structure
        self.state: Any = None

    def __call__(self, ops: Any, *leaves: Any) -> tuple[list[Any], Structure]:
        loss, aux = loss_and_aux(self._loss(ops, *unflatten(self._structure, leaves)))
        self.state = flatten(aux.state)[1]
        return flatten((loss, with_state(aux.metrics, aux.state)))


def _join(ops: Varying, x: VaryingRef, how: str, weight: VaryingRef | None) -> VaryingRef:
    """Combine a tensor of each rank's rows into that of all rows."""
    x = ops.adopt(x)
    if how == SUM:
        return _all_sum(ops, x)
    if DATA not in x.axes:
        return x
    if how == DIVISOR and weight is not None:
        spread = ops.broadcast_to(weight, shape=x.shape)
        nothing = ops.full(shape=x.shape, value=0.0, dtype=x.dtype)  # a mean over no rows is 0/0 and must not count
        counted, divisor = ops.less(nothing, spread), spread
        if ops.divided:  # weights of the program's own, which may be below 0
            counted, divisor = counts(ops, spread, x), ops.divisor(spread)
        product = ops.select(counted, ops.mul(x, divisor), nothing)
        count = ops.all_reduce(weight, axis=DATA)
        return ops.div(ops.all_reduce(product, axis=DATA), ops.broadcast_to(count, shape=x.shape))
    return all_mean(ops, x, axis=DATA)


def _is_alone(ops: Any) -> bool:
    """Return whether one rank processes all rows."""
    size = ops.mesh.size(DATA)
    return isinstance(size, int) and size == 1


def _all_sum(ops: Varying, x: VaryingRef) -> VaryingRef:
    """Return the sum over the ranks, also of what all of them have alike."""
    if _is_alone(ops):
        return x
    own = VaryingRef(x.value, ops, x.axes, copied=x.copied - {DATA}) if DATA in x.axes else ops.vary(x, axis=DATA)
    return ops.adopt(ops.all_reduce(own, axis=DATA))


def _metric(ops: Varying, name: str, value: Any, joins: LossReduction, weighed: Callable[..., Any]) -> VaryingRef:
    """Combine a metric of each rank's rows into that of all rows. Raises UsageError if it is not proved how."""
    x, how = ops.adopt(value), joins.metrics.get(name, "")
    if _is_alone(ops):
        return x
    if how == SUM:
        return _all_sum(ops, x)
    if not how:
        raise UsageError(
            f"{called(name)} cannot be sharded over mesh axis {DATA!r}: how that of a batch "
            f"follows from those of its parts is not known: {joins.unknown.get(name, joins.reason)}; make it one "
            "number of all ranks with the collectives, such as opstage.derived.all_mean or ops.all_max"
        )
    if x.dtype.kind not in "fO":  # all ranks have the same
        return VaryingRef(x.value, ops, x.axes - {DATA})
    if how in (DIVISOR, OTHER):
        return _join(ops, x, DIVISOR, weighed(joins.divisors.get(name, joins.divisor), x))
    return _join(ops, x, how, None)
