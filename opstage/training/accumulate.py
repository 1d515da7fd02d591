"""Gradient accumulation: a step computes its batch in microbatches, with the gradient of the whole batch and the memory
of one microbatch.

`Microbatches` cuts a step in two programs: `part` adds the gradient of a microbatch to the sums of those before it, and
`apply` updates the parameters by the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, final

import numpy as np

from ..ops.array_conversion import as_numpy
from ..ops.errors import ProgramError, UsageError
from ..ops.trees import Structure, flatten, lists_as_arrays, unflatten
from ..ops.types import TensorType, dtype_name
from ..optim.hyperparameters import keep, require_count
from ..options import Options
from ..program_arguments import with_train
from ..transforms.base_program import BaseProgram
from ..transforms.interpreter import BaseInterpreter
from .loss_reduction import DIVISOR, Divisor, LossReduction, LossReductions, called, counts, is_state, with_state
from .parallel import DataParallel, FlatLoss, LossPart
from .step import Row, StepOutputs, TrainingStep
from .terms import ROWS, SUM
from .validate import by_position

if TYPE_CHECKING:
    from .executor import Executor
    from .state import BoundOptimizer


@final
@dataclass(frozen=True)
class Accumulate:
    """Each training step computes its batch in `parts`, cut along the rows, and makes one update of all of them.

    parts   how many; a batch of fewer rows has as many parts as rows
    by      how the loss of a batch follows from those of its parts. "rows": it is a mean over rows, so parts are
            weighed by their rows, or over those that count (targets that are not ignored, weights), so by what its sum
            is divided by. "sum": it is a sum over rows. Any other word is a metric of `Aux(metrics=)`, by which they
            are weighed, for a loss of which that cannot be read
    check   refuse a loss or a new state of which that is not proved on its trace, and batch norm

    A loss may also be a sum of terms that are each a mean, a sum, a sum divided by what the data alone decide, such as
    max(count, 1), or fixed, such as a penalty. Then `by` is not read: what sums are divided by is computed of the whole
    batch first.

    The gradient is Σ w·g / Σ w over parts, which is that of the whole batch except for rounding; the new state follows
    from those of the parts likewise. With `check=False` statistics of a batch are those of a part, and state continues
    from part to part. Random draws are others than those of the whole batch, though no part shares them with another.

    Raises:
        UsageError: parts that are not an integer >= 1.
    """

    parts: int
    by: str = ROWS
    check: bool = True

    def __post_init__(self) -> None:
        keep(self, "parts", require_count("accumulate", "parts", self.parts))
        if not isinstance(self.by, str) or not self.by:
            raise UsageError(f"accumulate: by must be 'rows', 'sum' or the name of a metric but is {self.by!r}")

    @property
    def metric(self) -> str | None:
        """Return the name of the metric that weighs the parts, or None for ROWS and SUM."""
        return None if self.by in (ROWS, SUM) else self.by


def as_accumulate(value: int | Accumulate | None, options: Options) -> Accumulate | None:
    """Convert a number of parts or an `Accumulate` to an `Accumulate`; return None for one part.

    None stands for the parts of the options. Raises UsageError if both give another number.
    """
    if value is None:
        made = Accumulate(options.accumulate)
    else:
        made = value if isinstance(value, Accumulate) else Accumulate(value)
        require_one_meaning("accumulate", made.parts, options)
    return made if made.parts > 1 else None


def require_one_meaning(name: str, parts: int, options: Options) -> None:
    """Raise UsageError if the option accumulate gives another number of parts than the setting `name`."""
    if options.accumulate not in (1, parts):
        raise UsageError(
            f"{name} is {parts}, but the options have accumulate={options.accumulate}; give one of them, or the same "
            "number in both"
        )


class Microbatch(NamedTuple):
    """A part of a batch: its values on the interpreter and its number of rows."""

    refs: tuple[Any, ...]
    rows: int


class GradientSums(NamedTuple):
    """The combined results of all microbatches: loss, metrics, last state, gradient sums and total weight."""

    loss: Any
    metrics: dict[str, Any]
    state: Any
    sums: tuple[Any, ...]
    weight: Any


@final
class Rows:
    """A batch as arrays that can be cut along their first axis. Raises UsageError if it has no rows."""

    def __init__(self, executor: Executor, batch: tuple[Any, ...]):
        self._executor = executor
        trees = by_position(batch, executor.loss, executor.state.batch_starts, "the loss")
        leaves, self.structure = flatten(lists_as_arrays(trees))
        self._arrays = [as_numpy(leaf) for leaf in leaves]
        sizes = {array.shape[0] if array.ndim else None for array in self._arrays}
        if len(sizes) != 1 or None in sizes or 0 in sizes:
            shapes = ", ".join(str(array.shape) for array in self._arrays)
            raise UsageError(
                "accumulate cuts a batch along the rows of its arrays, which must be as many in each, but their shapes "
                f"are {shapes}; give an array of another kind to the loss in another way, or train without accumulate"
            )
        self.count = int(sizes.pop() or 0)

    def part(self, start: int, stop: int) -> Microbatch:
        """Return rows `start` to `stop`, on the interpreter."""
        cut = unflatten(self.structure, [array[start:stop] for array in self._arrays])
        return Microbatch(self._executor.bind_batch(cut)[0], stop - start)

    def parts(self, count: int) -> list[Microbatch]:
        """Split all rows into `count` parts, or into one part per row if there are fewer rows."""
        count = min(count, self.count)
        return [self.part(*ends) for ends in pairwise([self.count * i // count for i in range(count + 1)])]


@final
@dataclass(frozen=True, eq=False)
class Microbatches:
    """A step as two programs, see `part` and `apply`.

    weigh   the weight of a microbatch: the metric of this name, or the divisor of the loss; None: a number given as
            input
    terms   how what the parts give adds up, for a loss whose terms join in ways of their own
    rows    those of the whole batch, in that case
    sums    the results of all microbatches, once they are computed
    """

    whole: TrainingStep
    weigh: str | Divisor | None = None
    terms: LossReduction | None = None
    rows: int = 0
    sums: GradientSums | None = None

    @property
    def program(self) -> Callable[..., Row[Any]]:
        """Return the program that completes the step."""
        return self.apply

    @property
    def key(self) -> tuple[Any, ...]:
        """Return a key that distinguishes its programs from those of the trainer's other steps."""
        return self.whole.key, self.weigh, self.terms and self.terms.terms, self.rows

    def part(self, ops: BaseInterpreter[Any], *row: Any) -> Row[Any]:
        """Compute a part of a batch: (parameters, state, batch, sums, number, weight[, share, sums over rows]) ->
        (loss, metrics, state), weight, sums.

        The sums accumulate weight times gradient of the trained parameters over the parts so far; on a mesh, over a
        rank's own rows. The weight is the given one, or computed as `weigh` says.
        """
        step = self.whole
        first = sum(step.counts[:3])
        last = first + len(step.trained_indices)
        sums, (number, weight, *terms) = row[first:last], row[last:]
        with ops.in_part(number):
            outputs, structure = step.gradients(
                ops, (*row[:first], *terms), self._run if terms else None, reduces=False
            )
        loss, end = outputs[0], structure.num_leaves
        if isinstance(self.weigh, Divisor):
            weight = ops.cast(self._divisor(ops, row[:first], self.weigh), dtype=dtype_name(loss.dtype))
        elif self.weigh is not None:
            metrics = unflatten(structure, outputs[:end])[1]
            if self.weigh not in metrics or len(metrics[self.weigh].shape):
                there = ", ".join(metrics) or "none"
                raise ProgramError(
                    f"accumulate weighs the parts of a batch by the metric {self.weigh!r}, a scalar that the loss must "
                    f"give in Aux(metrics=); it gives {there}"
                )
            weight = ops.cast(metrics[self.weigh], dtype=dtype_name(loss.dtype))
        new = [ops.add(total, self._weighed(ops, weight, loss, g)) for total, g in zip(sums, outputs[end:])]
        return [*outputs[:end], weight, *new], structure

    def _run(self, ops: Any, *row: Any) -> Any:
        """Compute (parameters, state, batch, share, sums) -> what a part adds to loss and metrics, and the new
        state."""
        assert self.terms is not None and self.terms.terms is not None
        first = sum(self.whole.counts[:3])
        part = LossPart(self.terms, self.rows, dict(zip(self.terms.terms.sums, row[first + 1 :])), row[first])
        return replace(self.whole, loss=self._loss.on(part)).loss_and_state(ops, *row[:first])

    @property
    def _loss(self) -> DataParallel:
        """Return the loss as that of a rank's rows."""
        loss = self.whole.loss
        return loss if isinstance(loss, DataParallel) else DataParallel(loss, 1 if self.whole.state is None else 2)

    def sum_over_rows(self, ops: Any, *row: Any) -> Row[Any]:
        """Compute (parameters, state, batch, share, sums known so far) -> the next sum over the rows of a part."""
        assert self.terms is not None and self.terms.terms is not None
        first, terms = sum(self.whole.counts[:3]), self.terms.terms

        def program(outer: Any, *refs: Any) -> Row[Any]:
            arguments = self.whole.arguments(refs[:first])
            leaves, structure = flatten(arguments)
            share, known = refs[first], dict(zip(terms.sums, refs[first + 1 :]))

            def shared(x: Any) -> Any:
                return outer.mul(x, outer.broadcast_to(outer.cast(share, dtype=dtype_name(x.dtype)), shape=x.shape))

            batch = slice(len(leaves) - self.whole.counts[2], len(leaves))
            loss, only = FlatLoss(self._loss.loss, structure), terms.sums[len(known)]
            total = terms.run(outer, loss, leaves, batch, self.rows, lambda at, x: known.get(at, x), shared, only)
            return [total], flatten(0)[1]

        return self.whole.sharding.on_whole_parameters(ops, program, row, self.whole.counts[0])

    def _divisor(self, ops: Any, row: Sequence[Any], divisor: Divisor) -> Any:
        def program(outer: Any, *refs: Any) -> Row[Any]:
            leaves, structure = flatten(self.whole.arguments(refs))
            types = [TensorType(ref.shape, ref.dtype) for ref in leaves]
            return [divisor.value(outer, FlatLoss(self._loss.loss, structure), leaves, types)], flatten(0)[1]

        (count,), _ = self.whole.sharding.on_whole_parameters(ops, program, row, self.whole.counts[0])
        return count

    def _weighed(self, ops: Any, weight: Any, loss: Any, gradient: Any) -> Any:
        """Return weight·gradient, or 0 for a part in which nothing counts."""
        product = ops.mul(ops.broadcast_to(weight, shape=gradient.shape), gradient)
        if self.weigh is None:
            return product
        zero = ops.full(shape=gradient.shape, value=0.0, dtype=gradient.dtype)
        return ops.select(ops.broadcast_to(counts(ops, weight, loss), shape=gradient.shape), product, zero)

    def apply(self, ops: BaseInterpreter[Any], *row: Any) -> Row[Any]:
        """Compute (parameters, slots, scalars, sums, weight) -> new trained parameters and slots; gradients are
        sums/weight.

        On a mesh, the sums are reduced over the ranks here, once for all parts.
        """
        params, state, batch, slots, scalars = self.whole.counts
        head, rest = row[:params], row[params : params + slots + scalars]
        *sums, weight = row[params + slots + scalars :]
        inputs = (*head, *[None] * (state + batch), *rest)
        gradients = [ops.div(total, ops.broadcast_to(weight, shape=total.shape)) for total in sums]
        new = self.whole.apply_optimizer(ops, inputs, self.whole.reduce_gradients(ops, gradients))
        return new, flatten((None, None, None))[1]

    def pack(
        self, parameters: Sequence[Any], state: Any, batch: Any, slots: Sequence[Any], scalars: Sequence[Any]
    ) -> tuple[Any, ...]:
        """Return the flat inputs of `apply`, which reads state and batch by their gradients alone."""
        assert self.sums is not None
        return self.whole.pack(parameters, (), (), slots, (*scalars, *self.sums.sums, self.sums.weight))

    def unpack(self, outputs: Sequence[Any], structure: Structure) -> StepOutputs:
        """Return the outputs of the whole step."""
        assert self.sums is not None
        loss, metrics, state = self.sums[:3]
        return self.whole.unpack(outputs, structure)._replace(loss=loss, metrics=metrics, state=state)

    def donated(self, alone: Sequence[bool], *, slots: bool) -> dict[int, bool]:
        """Return which inputs of `apply` its results may overwrite; see `TrainingStep.donated`."""
        first = self.whole.counts[0]
        parameters = dict(zip(self.whole.trained_indices, alone))
        return parameters | (dict.fromkeys(range(first, first + self.whole.counts[3]), True) if slots else {})

    def sum_gradients(
        self, executor: Executor, parts: Sequence[Microbatch], by: str, joins: Mapping[str, str]
    ) -> GradientSums:
        """Return the sum of the gradients of all parts, computed on the interpreter. Parameters and state do not
        change.

        `joins` maps names of metrics and `new_state`s to ROWS or SUM; the others are combined like the
        loss. If it has no new state, each part continues from that of the part before.
        """
        held, step = executor.state, self.whole
        interpreter = held.interpreter
        values, state = held.values(), held.state
        old = with_state({}, None if step.state is None else unflatten(step.state, state))
        proved = all(joins.get(name) for name in old)
        total = sum(part.rows for part in parts)
        exact = interpreter.dtype.kind == "O"
        shares = [Fraction(part.rows, total) for part in parts]
        put = [interpreter.put(np.asarray(share if exact else float(share))) for share in shares]
        known = [] if self.terms is None else self._sums_over_rows(executor, parts, put)
        trained = [held.params[i] for i in step.trained_indices]
        sums: tuple[Any, ...] = tuple([interpreter.put(np.zeros(param.shape, param.dtype)) for param in trained])
        first = sum(step.counts[:3])
        donated = dict.fromkeys(range(first, first + len(sums)), True)
        losses: list[Any] = []
        weights: list[Any] = []
        told: list[dict[str, Any]] = []
        for number, part in enumerate(parts):
            weight = interpreter.put(np.asarray(Fraction(1) if exact else 1.0)) if by == SUM else put[number]
            scalars = interpreter.put(np.asarray(number)), weight, *([put[number], *known] if self.terms else ())
            row = step.pack(values, state, part.refs, (sums,), scalars)
            program = BaseProgram(self.part, None, ("part", self.key), donated)
            outputs, structure = executor.execute(program, row)
            program.finish(())
            end = structure.num_leaves
            loss, metrics, tree = unflatten(structure, outputs[:end])
            sums, state = tuple(outputs[end + 1 :]), state if proved else flatten(tree)[0]
            metrics = with_state(metrics, tree if proved else None)
            losses.append(held.host(loss))  # read before any update: it raises if an index was out of range
            weights.append(held.host(outputs[end]))
            told.append({name: held.host(value) for name, value in metrics.items()})
        divisor: Any = Fraction(1) if self.weigh is None else sum(each[()] for each in weights)
        if not divisor > 0:
            what = f"the metric {by!r}" if isinstance(self.weigh, str) else "what the loss of the rows is divided by"
            raise UsageError(f"accumulate: {what} is {float(divisor)} in all, so the batch does not have a mean by it")
        rows = [np.asarray(Fraction(part.rows)) for part in parts]
        once = [np.asarray(Fraction(1))] * len(parts), Fraction(1)
        weighed = {ROWS: (rows, Fraction(total)), SUM: once}

        def metric(name: str) -> Any:
            how = joins.get(name, "")
            values = [each[name] for each in told]
            return _combine_metric(values, *weighed.get(how, (weights, divisor)), mean=how == ROWS)

        def new_state(name: str) -> Any:
            values = [each[name] for each in told]
            same = all(np.array_equal(values[0], each) for each in values) and joins[name] == ROWS
            return interpreter.put(values[0] if same else np.asarray(metric(name), values[0].dtype))

        return GradientSums(
            interpreter.put(_weighted_mean(losses, weights, divisor)),
            {name: interpreter.put(metric(name)) for name in told[0] if name not in old},
            [new_state(name) for name in old] if proved else state,
            sums,
            interpreter.put(np.asarray(divisor if exact else float(divisor))),
        )

    def _sums_over_rows(self, executor: Executor, parts: Sequence[Microbatch], shares: Sequence[Any]) -> list[Any]:
        """Return the sums over the rows of the whole batch that each part needs, on the interpreter."""
        assert self.terms is not None and self.terms.terms is not None
        held, known = executor.state, list[Any]()
        for slot in self.terms.terms.sums:
            found: list[Any] = []
            for part, share in zip(parts, shares):
                row = self.whole.pack(held.values(), held.state, part.refs, (), (share, *known))
                program = BaseProgram(self.sum_over_rows, None, ("sum", slot, self.key))
                found += executor.execute(program, row)[0]
            known.append(held.interpreter.put(_total([held.host(each) for each in found])))
        return known


def _total(values: Sequence[Any]) -> Any:
    """Return the sum of arrays, rounded once."""
    kind = np.asarray(values[0]).dtype
    return np.asarray(sum([np.asarray(value, np.float64 if kind.kind == "f" else kind) for value in values]), kind)


def _weighted_mean(values: Sequence[Any], weights: Sequence[Any], divisor: Any) -> Any:
    kind = np.asarray(values[0]).dtype
    wide = kind if kind.kind == "O" else np.dtype(np.float64)
    # a mean of no rows, 0/0, does not count; weights of both signs that add up to 0 make one that is infinite
    counting = [(weight, value) for weight, value in zip(weights, values) if weight or np.any(value == value)]
    total = sum(np.asarray(weight, wide) * np.asarray(value, wide) for weight, value in counting)
    return np.asarray(total / (divisor if kind.kind == "O" else float(divisor)), kind)


def _combine_metric(values: Sequence[Any], weights: Sequence[Any], divisor: Any, *, mean: bool) -> Any:
    """Add integer metrics, which are counts, except for a `mean`, which is the same in all parts; combine the others by
    their weights."""
    if np.asarray(values[0]).dtype.kind in "iub":
        return values[0] if mean else np.sum(np.asarray(values, np.int64), axis=0)
    if len({np.shape(value) for value in values}) > 1:
        raise UsageError("accumulate joins metrics of all parts of a batch, but a metric has another shape in each")
    return _weighted_mean(values, weights, divisor)


_WHAT = {ROWS: "a mean over the rows", SUM: "a sum over the rows"}


@final
class GradientAccumulation:
    """Computes steps in microbatches; proves how the loss of a batch follows from those of its parts."""

    def __init__(self, executor: Executor, accumulate: Accumulate):
        self._executor = executor
        self._accumulate = accumulate
        self._reductions = LossReductions()

    def compute(
        self, batch: tuple[Any, ...], optimizer: BoundOptimizer, scalars: tuple[str, ...]
    ) -> tuple[tuple[Any, ...], Microbatches]:
        """Return a batch as values of the interpreter, and the step with the gradients of its microbatches."""
        accumulate = self._accumulate
        if not self._executor.state.interpreter.executes:
            raise UsageError("accumulate computes with numbers; a backend that knows shapes alone takes whole batches")
        rows = Rows(self._executor, batch)
        parts = rows.parts(accumulate.parts)
        found = self.require(rows, parts)
        step = self._executor.choose_step(rows.structure, optimizer=optimizer, scalars=scalars)
        if found.terms is not None:
            split, by = Microbatches(step, terms=found, rows=rows.count), SUM
        else:
            named = accumulate.metric
            read = named is None or (found.loss and named in found.metrics.keys() - found.counts)
            split, by = Microbatches(step, found.divisor if read else named), accumulate.by
        sums = split.sum_gradients(self._executor, parts, by, found.metrics)
        return tuple(chain.from_iterable(part.refs for part in parts)), replace(split, sums=sums)

    def require(self, rows: Rows, parts: list[Microbatch]) -> LossReduction:
        """Return how the loss of these rows follows from those of its parts; with `terms`, from them alone. Raises
        UsageError unless that is proved, as `Accumulate.by` says."""
        by, metric, check = self._accumulate.by, self._accumulate.metric, self._accumulate.check
        step = self._executor.choose_step(rows.structure)
        held = self._executor.state
        row = step.pack(held.values(), held.state, parts[0].refs)
        types = [TensorType(ref.shape, ref.dtype) for ref in row]
        types[: len(held.params)] = [TensorType(param.shape, param.dtype) for param in held.params]
        arguments = step.arguments(range(len(types)))
        at, structure = flatten(arguments)
        types, batch = [types[i] for i in at], slice(len(at) - step.counts[2], len(at))
        key = (step.key, *[(type_.shape[1:], type_.dtype) for type_ in types[batch]])
        loss = FlatLoss(with_train(self._executor.loss, True), structure)
        with self._reductions.proved(key, loss, types, batch, held.interpreter, held.interpreter.mesh) as found:
            proved = found.loss == by or (found.loss == DIVISOR and by != SUM) or (found.loss == ROWS and metric)
            terms = found.in_terms(before=True)
            unproved = [name for name, how in terms.metrics.items() if not how] if terms is not None else []
            if not check and any(map(is_state, unproved)):
                terms = None  # state continues from part to part
            if check and found.parts:
                raise UsageError(
                    f"accumulate: {found.parts}, so the gradient would differ; check=False continues anyway"
                )
            if check and found.loss and not proved:
                self._refuse(found.loss)
            if check and not found.loss and terms is None:
                raise UsageError(
                    "accumulate: whether the loss of a batch follows from that of its parts is not known: "
                    f"{found.reason}; make it of means and sums over the rows, and of such sums divided by what the "
                    "data alone decide; check=False continues anyway"
                )
            found = found._replace(terms=None) if terms is None else terms
            if check:
                self._require_metrics(found)
            return found

    def _require_metrics(self, found: LossReduction) -> None:
        """Raise UsageError for a metric of which it is not proved that it follows from those of the parts."""
        unknown = {name: found.unknown.get(name, _OF_PARAMETERS) for name, how in found.metrics.items() if not how}
        for name, why in {**unknown, **dict.fromkeys(found.divisors, _OF_PARAMETERS)}.items():
            if name != self._accumulate.metric:
                raise UsageError(
                    f"accumulate: {called(name)} of a batch does not follow from those of its parts: {why}; give what "
                    "it is computed of, such as sums and counts; check=False weighs metrics like the loss, and changes "
                    "state part by part"
                )

    def _refuse(self, proved: str) -> NoReturn:
        by = self._accumulate.by
        what = _WHAT.get(by, f"a mean weighed by the metric {by!r}")
        found = _WHAT.get(proved, "a mean over the rows that count")
        other = proved if proved in _WHAT else ROWS
        raise UsageError(
            f"accumulate: the loss of a batch is not {what} (it is {found}), so its parts would give another gradient; "
            f"it is {found}: accumulate=Accumulate({self._accumulate.parts}, by={other!r})"
        )


_OF_PARAMETERS = "it is divided by what the parameters decide"
