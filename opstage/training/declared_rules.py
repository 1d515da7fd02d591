"""The derivative rules that users declare, as `Joins` sees their ops.

An op may take each row to one of its own while its rule does not: the rule normalizes, centres or clips over the batch,
or reads its size. Parts of a batch then have another gradient than the batch, so the op counts as one that mixes rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from typing_extensions import override

from ..analysis.dependence.fact import Fact, plain
from ..analysis.domain import OpCall
from ..analysis.interpretation import Interpretation
from ..analysis.rows import MIXED, Join, Joins, RowKind, RowReads, row_index
from ..interpreters.graph.recorder import Recorder, record
from ..ops.body import Body
from ..ops.dims import DimExpr
from ..ops.logic import FULL
from ..ops.types import is_float
from ..transforms.derivatives import vjp
from ..transforms.transposition import is_linear

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
    def finished(self, call: OpCall, facts: Sequence[Join], results: Sequence[Join]) -> Sequence[Join]:
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
        """Whether the rule gives for parts of the batch what it gives for the batch."""
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
        outputs = run.results_of(call.primitive, call.static, call.inputs, operands)
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
    """Whether the derivative of an op is one that a user declared."""
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
