"""The terms of a loss that combine in different ways: what each part of a batch adds to the loss of the batch.

Numbers that depend on that of the rows are those of the whole batch, and so are sums over rows that are no terms but
divide one, say. What is fixed, such as a penalty, each part adds in its share. Then what the parts give adds up to the
loss of the batch, and so do its gradients. `analysis.rows.analyze_parts` proves which sums these are.

An op may keep rows apart while the derivative rule that its user declared does not: the rule
normalizes, centres or clips over the batch, or reads its size. Such an op counts as one that mixes rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from typing_extensions import override

from ..analysis.dependence.fact import Fact, plain
from ..analysis.domain import Domain, OpCall
from ..analysis.interpretation import Interpretation
from ..analysis.rows import MIXED, RANKS, Join, Joins, RowKind, RowReads, analyze_parts, row_index, source_facts
from ..analysis.rows import ROWS as ROWS_DIM
from ..distributed.ranks import ROWS as DATA
from ..interpreters.graph.passes.pipeline import dead_code, expand
from ..interpreters.graph.recorder import Recorder, record
from ..ops.body import Body, Equation
from ..ops.catalogue import own
from ..ops.dims import Dim, DimExpr, DimFloat, DimScope, substitute
from ..ops.dispatch import VARY_LIKE, Region
from ..ops.elementwise import SCALE
from ..ops.errors import ProgramError
from ..ops.logic import FULL
from ..ops.mesh import Mesh
from ..ops.normalization import BATCH_NORM
from ..ops.primitive import Primitive
from ..ops.trees import Structure, unflatten
from ..ops.types import INT64, TensorType, is_float
from ..transforms.control_flow import CONTROL, get_bodies
from ..transforms.derivatives import vjp
from ..transforms.tracer import constants, evaluate
from ..transforms.transposition import is_linear

# Derivative rules that users declare ----------------------------------------------------------------------------------


_MIXES = "is not proved to take the cotangent of each row to that of the same row"
_BENDS = "is not linear in the cotangents, which are others for a part than for the batch"


class RuledJoins(Joins):
    """`Joins` of the results and their gradients along `rows`.

    faults   what makes the gradients of parts others than that of the batch even if they are weighed and added
    """

    def __init__(self, rows: DimExpr, *, whole: bool = False, ranks: bool = False, of_rank: bool = False):
        super().__init__(whole=whole, ranks=ranks, of_rank=of_rank)
        self._rows = rows
        self.faults: list[str] = []

    @override
    def finish(self, call: OpCall, facts: Sequence[Join], results: Sequence[Join]) -> Sequence[Join]:
        followed = not any(fact.kind is RowKind.MIXED for fact in results)
        if not (followed and has_rule(call)) or all(fact.kind is RowKind.FIXED and fact.data for fact in facts):
            return results
        try:
            proved = self._is_by_row(call, facts, results)
        except Exception:  # also the rule's own, which may expect a number of rows
            proved = False
        if proved:
            return results
        self.faults.append(f"the derivative rule of {call.primitive.name} {_MIXES}")
        return [MIXED._replace(note=f", whose derivative rule {_MIXES}")] * len(results)

    def _is_by_row(self, call: OpCall, facts: Sequence[Join], results: Sequence[Join]) -> bool:
        """Return whether the rule gives for parts of the batch what it gives for the batch."""
        body = _pullback(call)
        linear = is_linear(Recorder(_dtype(call), 0), body, [i >= len(facts) for i in range(len(body.inputs))])
        if not linear:
            self.faults.append(f"the derivative rule of {call.primitive.name} {_BENDS}")
        if all(fact.kind is RowKind.FIXED for fact in facts):  # a part adds its share of the result
            return linear
        if any(fact.is_sum for fact in facts):  # whose cotangents depend on how ranks weigh them
            return linear and not any(fact.kind is RowKind.ROWS for fact in facts)
        if any(fact.kind is RowKind.RATIO or fact.degree for fact in results):
            return False
        run = Interpretation([RowReads(self._rows), Joins()], self._rows.scope)
        operands = list(zip(call.known["rows"], facts))
        outputs = run.apply(call.primitive, call.static, call.inputs, operands)
        cotangents = [
            (known._replace(outside=(), value=None) if own.kind is RowKind.ROWS else plain(type_.shape),
             Join(RowKind.ROWS if own.kind is RowKind.ROWS else RowKind.FIXED))
            for (known, own), type_ in zip(outputs, call.outputs)
            if is_float(type_.dtype)
        ]  # fmt: skip
        found = run.run(body, [*operands, *cotangents])
        zeros = {e.outputs[0] for e in body.equations if e.primitive is FULL and e.static["value"] == 0}
        wanted = [each for each, type_ in zip(operands, call.inputs) if is_float(type_.dtype)]
        return all(slot in zeros or _fits(found[slot], each) for slot, each in zip(body.outputs, wanted))


def has_rule(call: OpCall) -> bool:
    """Return whether the derivative of an op is one that a user declared."""
    return call.primitive.declared and call.primitive.differentiable and call.primitive.vjp is not None


def _fits(cotangent: tuple[Fact, Join], operand: tuple[Fact, Join]) -> bool:
    (known, found), (reads, own) = cotangent, operand
    if own.kind is RowKind.ROWS:
        return found.kind is RowKind.ROWS and _row_axis(known) == _row_axis(reads) is not None
    return found.kind is RowKind.SUM and not found.degree and not found.affine


def _row_axis(fact: Fact) -> int | None:
    index = row_index(fact)
    return next((axis for axis in range(len(fact.axes)) if index in fact.indices(axis)), None)


def _dtype(call: OpCall) -> Any:
    return next(type_.dtype for type_ in call.inputs if is_float(type_.dtype))


def _pullback(call: OpCall) -> Body:
    """Record the derivative: (operands, cotangents of float outputs) -> cotangents of float operands."""
    outputs = call.outputs[: len(call.primitive.outputs)]

    def pulled(ops: Any, *refs: Any) -> tuple[Any, ...]:
        def forward(tape: Any, *nodes: Any) -> tuple[Any, ...]:
            return tuple(tape.bind(call.primitive, nodes, call.static)[: len(outputs)])

        operands, given = refs[: len(call.inputs)], iter(refs[len(call.inputs) :])
        _, pullback = vjp(ops, forward, *operands)
        found = pullback(tuple([next(given) if is_float(type_.dtype) else None for type_ in outputs]))
        return tuple([ref for ref, type_ in zip(found, call.inputs) if is_float(type_.dtype)])

    types = [*call.inputs, *[type_ for type_ in outputs if is_float(type_.dtype)]]
    return record(pulled, types, _dtype(call), 0).body


# Traces with a symbolic number of rows, and the terms in them ---------------------------------------------------------


SAYING = Mesh((("of one rank", 1),))
"""A mesh on which a program is traced as without one, but for draws, which say whether they have `like=`."""

ANY_RANKS = Mesh(((DATA, RANKS),))
"""A mesh on which a program is traced for every number of ranks."""

ROWS, SUM = "rows", "sum"
"""How results of parts combine: as their mean, weighed by rows, or their sum."""

FlatProgram: TypeAlias = "Callable[..., tuple[list[Any], Structure]]"
"""A program of refs in a row that returns its results in a row, and their structure."""


@final
class RowTrace:
    """A flat program traced with a symbolic number of rows; `batch` says which of its inputs have rows. It is that of
    a rank of `mesh`.

    body       its ops; behind its inputs the numbers of iterations, and of the step if it is read
    structure  of its results
    """

    def __init__(
        self,
        program: FlatProgram,
        types: Sequence[TensorType],
        batch: slice,
        ops: Any,
        iterations: int = 0,
        mesh: Mesh = SAYING,
    ):
        self.mesh = mesh
        self.scope, inside = DimScope(), range(*batch.indices(len(types)))
        self.rows = self.scope.dim(ROWS_DIM)
        bound = mesh.bound(self.scope.dim)
        for name in (ROWS_DIM, *mesh.open):
            self.scope.declare(f"{name} >= 2")  # a batch of one has no variance
        given = [TensorType((self.rows, *t.shape[1:]), t.dtype) if i in inside else t for i, t in enumerate(types)]
        built: list[Structure] = []

        def outputs(traced: Any, *refs: Any) -> tuple[Any, ...]:
            leaves, structure = program(traced, *refs)
            built.append(structure)
            return tuple(leaves)

        def in_part(traced: Any, *refs: Any) -> tuple[Any, ...]:
            with traced.in_part(refs[-1]):
                return outputs(traced, *refs[:-1])

        given += [TensorType((), INT64)] * iterations
        self.body = record(in_part if iterations else outputs, given, ops.dtype, ops.seed, mesh=bound).body
        self.structure = built[0]

    def interpretation(self, joins: RuledJoins) -> Interpretation:
        """Return a run of bodies on facts about rows."""
        domains: list[Domain[Any]] = [RowReads(self.rows), joins]
        return Interpretation(domains, self.scope)

    def by_rows(self) -> Body:
        """Return the body without composites other than those that make each row of one row."""
        run = self.interpretation(RuledJoins(self.rows))

        def stays(primitive: Primitive, operands: tuple[TensorType, ...], static: Any) -> bool:
            if primitive not in own() or primitive in (BATCH_NORM, VARY_LIKE):
                return True  # a user's op has derivatives of its own
            equation = Equation(primitive, static, (), (), Region(), 0)
            types = [*operands, *primitive.infer(operands, static)]
            results = run.results(equation, [source_facts(run, type_) for type_ in operands], types)
            return all(join.kind <= RowKind.ROWS and not join.power for _, join in results)

        def expanded(body: Body) -> Body:
            body = expand(body, stays)
            return body.replace(
                equations=[
                    e._replace(static={**e.static, **{name: expanded(inner) for name, inner in get_bodies(e.static)}})
                    if e.primitive in CONTROL
                    else e
                    for e in body.equations
                ]
            )

        with self.scope.aside():
            return expanded(self.body)


@final
@dataclass(frozen=True)
class Terms:
    """How results of a batch follow from what its parts give. An operand is (first result of its op, number).

    names    the primitives of its ops, in order
    whole    the operands that are sums over all rows of the batch
    shared   the operands of which each part adds its share
    kinds    for each result, SUM if that of the batch is the sum of those of its parts, FIXED if all have the same;
             else it is not proved
    sums     the slots of the sums over all rows, in order, that can be computed before
    before   for each result, whether it needs no others
    result   the structure of the results
    mesh     that on which the program was traced
    """

    names: tuple[str, ...]
    whole: frozenset[tuple[int, int]]
    shared: frozenset[tuple[int, int]]
    kinds: tuple[RowKind, ...]
    sums: tuple[int, ...]
    before: tuple[bool, ...]
    result: Structure
    mesh: Mesh

    @classmethod
    def of(cls, trace: RowTrace, ranks: bool) -> Terms:
        """Return what is proved of a traced program; see `analysis.rows.Joins` for `ranks`."""
        body = trace.by_rows()
        run = trace.interpretation(RuledJoins(trace.rows, whole=True, ranks=ranks))
        with trace.scope.aside():
            facts, whole, shared, needs = analyze_parts(run, body)
        known = [join for _, join in map(facts.__getitem__, body.outputs)]
        data = {slot: facts[slot][1].data for slots in needs.values() for slot in slots}
        return cls(
            _names(body),
            frozenset(whole),
            frozenset(shared),
            tuple([join.kind for join in known]),
            tuple([slot for equation in body.equations for slot in equation.outputs if data.get(slot)]),
            tuple([all(data[each] for each in needs.get(slot, ())) for slot in body.outputs]),
            trace.structure,
            trace.mesh,
        )

    def joins(self, *, before: bool) -> tuple[str, dict[str, str]]:
        """Return how the loss and each metric combine, empty if nothing is proved; with sums `before` alone, or with
        all."""
        how = {RowKind.FIXED: ROWS, RowKind.SUM: SUM}
        every = [how.get(kind, "") if own or not before else "" for kind, own in zip(self.kinds, self.before)]
        loss, metrics = unflatten(self.result, every)
        return loss, {name: each for name, each in metrics.items() if isinstance(each, str)}

    def run(
        self,
        ops: Any,
        program: FlatProgram,
        refs: Sequence[Any],
        batch: slice,
        rows: Dim,
        whole: Callable[[int, Any], Any],
        shared: Callable[[Any], Any],
        only: int | None = None,
    ) -> Any:
        """Return what a part of a batch of `rows` rows adds, or the sum `only` over its rows.

        `whole` makes of a slot and its value for the part that for the batch; `shared` the part's share of a value. The
        program is traced again, since Python state that it reads may have changed.
        """
        types = [TensorType(ref.shape, ref.dtype) for ref in refs]
        iterations = ops.iterations()
        trace = RowTrace(program, types, batch, ops, len(iterations), self.mesh)
        body = trace.by_rows()
        if _names(body) != self.names:
            raise ProgramError(
                "the loss is computed in another way than when it was proved how it follows from its rows; let it "
                "depend on nothing that changes meanwhile"
            )
        sizes = {ROWS_DIM: types[batch.start].shape[0], RANKS: ops.mesh.size(DATA)}
        body, behind = _substitute_sizes(body, sizes, {ROWS_DIM: rows, RANKS: 1}), len(iterations)
        if only is not None:
            body = dead_code(body.replace(outputs=(only + behind,)))

        def operands(equation: Equation, given: tuple[Any, ...]) -> tuple[Any, ...]:
            found = list(given)
            for i, (slot, x) in enumerate(zip(equation.inputs, given)):
                place = equation.outputs[0] - behind, i  # slots behind the numbers of iterations
                if place in self.whole:
                    found[i] = whole(slot - behind, x)
                elif place in self.shared:
                    found[i] = shared(x)
            return tuple(found)

        step = [ops.step()] if len(body.inputs) > len(refs) + len(iterations) else []
        outputs = evaluate(ops, body, [*refs, *iterations, *step], constants(ops, body), operands)
        return unflatten(self.result, list(outputs)) if only is None else outputs[0]


def _names(body: Body) -> tuple[str, ...]:
    return tuple([equation.primitive.name for equation in body.equations])


def _substitute_sizes(body: Body, sizes: Mapping[str, Dim], whole: Mapping[str, Dim]) -> Body:
    """Return a body of these sizes, whose numbers that depend on them are those of the `whole` batch on one rank."""

    def static(primitive: Primitive, name: str, value: Any) -> Any:
        if isinstance(value, Body):
            return _substitute_sizes(value, sizes, whole)
        number = isinstance(value, DimFloat) or (primitive is FULL and name == "value") or primitive is SCALE
        return substitute(value, whole if number else sizes)

    equations = [
        e._replace(static={name: static(e.primitive, name, value) for name, value in e.static.items()})
        for e in body.equations
    ]
    types = [TensorType(substitute(type_.shape, sizes), type_.dtype) for type_ in body.types]
    return body.replace(equations=equations, types=types)
