"""The abstract interpreter: a closed body run on facts, in several domains side by side."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeAlias, final

from ..interpreters.branching import SWITCH
from ..interpreters.codegen.decomposition import Expander
from ..interpreters.looping import WHILE
from ..interpreters.resting import resting
from ..interpreters.structural import SCAN
from ..ops.closed import Body, Equation
from ..ops.dims import DimExpr, DimScope
from ..ops.errors import OpstageError
from ..ops.kinds import Effect, Kind
from ..ops.primitive import Primitive, Static, distinct
from ..ops.types import TensorType
from .domain import Domain, OpCall
from .loops import scan, switch, while_loop

Facts: TypeAlias = "tuple[Any, ...]"
"""The facts of one tensor, in the order of the domains."""

_CONTROL: Mapping[Primitive, Callable[[Any, Equation, Sequence[Facts], Sequence[TensorType]], list[Facts]]] = {
    SCAN: scan,
    SWITCH: switch,
    WHILE: while_loop,
}


@final
class Interpretation:
    """Runs of bodies in `domains`. What an op gives is kept by the facts that it was given, so layers alike cost one.

    Sizes are those of `scope`: what is asked of its prover becomes no condition of the program.
    """

    __slots__ = ("_decompositions", "_results", "domains", "scope")

    def __init__(self, domains: Sequence[Domain[Any]], scope: DimScope | None = None):
        self.domains = tuple(domains)
        self.scope = scope
        self._results: tuple[dict[Hashable, Sequence[Any]], ...] = tuple([{} for _ in self.domains])
        self._decompositions: dict[Hashable, Body | None] = {}

    def run(
        self, body: Body, inputs: Sequence[Facts], after: Callable[[Equation], None] = lambda equation: None
    ) -> list[Facts]:
        """The facts of every slot of a body, for those of its inputs; `after` is called with each of its equations."""
        if self.scope is None:
            self.scope = next((d.scope for t in body.types for d in t.shape if isinstance(d, DimExpr)), DimScope())
        with self.scope.aside(), resting():
            return self.facts_of(body, inputs, after)

    def facts_of(
        self, body: Body, inputs: Sequence[Facts], after: Callable[[Equation], None] = lambda equation: None
    ) -> list[Facts]:
        """The same, for bodies within a run."""
        facts: list[Any] = [None] * len(body.types)
        for slot, known in zip(body.inputs, inputs, strict=True):
            facts[slot] = known
        for constant in body.constants:
            facts[constant.slot] = tuple([domain.constant(constant) for domain in self.domains])
        types = body.types
        for equation in body.equations:
            read = [facts[slot] for slot in equation.inputs]
            found = self.results(equation, read, [types[slot] for slot in equation.inputs + equation.outputs])
            for slot, known in zip(equation.outputs, found, strict=True):
                facts[slot] = known
            after(equation)
        return facts

    def outputs_of(self, body: Body, inputs: Sequence[Facts]) -> list[Facts]:
        """The facts of a body's outputs."""
        facts = self.facts_of(body, inputs)
        return [facts[slot] for slot in body.outputs]

    def results_of(
        self, primitive: Primitive, static: Static, inputs: Sequence[TensorType], read: Sequence[Facts]
    ) -> list[Facts]:
        """The facts of an op's results where nothing is kept: by the rule of the first domain, or by its parts."""
        types = tuple(inputs)
        call = OpCall(primitive, static, types, primitive.infer(types, static), {})
        found = self._by_rule(self.domains[0], call, [known[0] for known in read])
        if found is None:
            return self._by_parts((primitive, distinct(static), types), static, types, read)
        return [(fact,) for fact in found]

    def results(self, equation: Equation, read: Sequence[Facts], types: Sequence[TensorType]) -> list[Facts]:
        """The facts of an equation's results, for those of its operands; `types` are of operands, then results."""
        primitive = equation.primitive
        inputs, outputs = tuple(types[: len(read)]), tuple(types[len(read) :])
        if Effect.EXTERNAL in equation.effects or primitive.kind is Kind.COLLECTIVE:
            return [tuple([domain.made(domain.anything(type_)) for domain in self.domains]) for type_ in outputs]
        control = _CONTROL.get(primitive)
        if control is not None:
            given = control(self, equation, read, types)
            return [tuple([domain.made(fact) for domain, fact in zip(self.domains, known)]) for known in given]
        static = distinct(equation.static)
        key = (primitive, static, inputs)
        columns, parts = [], None
        for at, domain in enumerate(self.domains):
            facts = [known[at] for known in read]
            asked = {d.name: [known[i] for known in read] for i, d in enumerate(self.domains) if d.name in domain.asks}
            whole = (*key, domain.context, tuple(facts), *map(tuple, asked.values()))
            results = self._results[at].get(whole)
            if results is None:
                call = OpCall(primitive, equation.static, inputs, outputs, asked)
                results = self._by_rule(domain, call, facts)
                if results is None:
                    if parts is None:
                        parts = self._by_parts(key, equation.static, inputs, read)
                    results = [known[at] for known in parts] or [domain.top(type_, facts) for type_ in outputs]
                results = domain.finished(call, facts, results)
                assert len(results) == len(outputs), primitive
                self._results[at][whole] = results
            columns.append(results)
        return list(zip(*columns))

    @staticmethod
    def _by_rule(domain: Domain[Any], call: OpCall, facts: Sequence[Any]) -> Sequence[Any] | None:
        rule = domain.rules.get(call.primitive) or domain.kinds.get(call.primitive.kind)
        try:
            return None if rule is None else rule(domain, call, facts)
        except OpstageError:  # a relation of sizes that it needs is not decided
            return None

    def _by_parts(
        self, key: tuple[Any, ...], static: Static, inputs: tuple[TensorType, ...], read: Sequence[Facts]
    ) -> list[Facts]:
        """The results of an op's decomposition; none where there is none, or it cannot be written down."""
        primitive = key[0]
        if key not in self._decompositions:
            self._decompositions[key] = _parts(primitive, static, inputs)
        body = self._decompositions[key]
        return [] if body is None else self.outputs_of(body, read)


def _parts(primitive: Primitive, static: Static, inputs: tuple[TensorType, ...]) -> Body | None:
    if primitive.decomposition is None:
        return None
    try:
        return Expander(lambda *call: True, False).parts(primitive, inputs, static)
    except (OpstageError, TypeError, ValueError):  # it reads values, or sizes that have names
        return None
