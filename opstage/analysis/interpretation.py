"""The abstract interpreter: runs a closed body on the facts of several domains, and its loops to a fixpoint."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, final

from ..compiler.codegen.composites import Expander
from ..ops.body import Body, Equation, ScanParameters, WhileParameters
from ..ops.dims import Dim, DimExpr, DimScope
from ..ops.errors import OpstageError
from ..ops.primitive import Effect, Kind, Primitive, Static, distinct
from ..ops.types import TensorType
from ..threads import paused_gc
from ..transforms.cond import SWITCH, get_branches
from ..transforms.remat import REMAT
from ..transforms.scan import SCAN
from ..transforms.while_loop import WHILE
from .domain import Domain, LoopFacts, OpCall

Facts: TypeAlias = "tuple[Any, ...]"
"""The facts of one tensor, in the order of the domains."""


@final
class Interpretation:
    """Runs of bodies in `domains`. Results of ops are cached by the facts of their operands, so equal layers cost one.

    Sizes belong to `scope`: queries to its prover add no condition to the program.
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
        """Return the facts of every slot of a body, given those of its inputs; call `after` with each of its
        equations.
        """
        if self.scope is None:
            self.scope = next((d.scope for t in body.types for d in t.shape if isinstance(d, DimExpr)), DimScope())
        with self.scope.aside(), paused_gc():
            return self.run_body(body, inputs, after)

    def run_body(
        self, body: Body, inputs: Sequence[Facts], after: Callable[[Equation], None] = lambda equation: None
    ) -> list[Facts]:
        """Return the same for a body inside a run."""
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

    def run_outputs(self, body: Body, inputs: Sequence[Facts]) -> list[Facts]:
        """Return the facts of a body's outputs."""
        facts = self.run_body(body, inputs)
        return [facts[slot] for slot in body.outputs]

    def apply(
        self, primitive: Primitive, static: Static, inputs: Sequence[TensorType], read: Sequence[Facts]
    ) -> list[Facts]:
        """Return the facts of an op's results without a cache, by the rule of the first domain or by its
        decomposition.
        """
        types = tuple(inputs)
        call = OpCall(primitive, static, types, primitive.infer(types, static), {})
        found = self._by_rule(self.domains[0], call, [known[0] for known in read])
        if found is None:
            return self._by_parts((primitive, distinct(static), types), static, types, read)
        return [(fact,) for fact in found]

    def results(self, equation: Equation, read: Sequence[Facts], types: Sequence[TensorType]) -> list[Facts]:
        """Return the facts of an equation's results, given those of its operands; `types` lists operands, then
        results.
        """
        primitive = equation.primitive
        inputs, outputs = tuple(types[: len(read)]), tuple(types[len(read) :])
        sends = primitive.kind is Kind.COLLECTIVE and not all(primitive in domain.rules for domain in self.domains)
        if sends or Effect.EXTERNAL in equation.effects:
            return [tuple([domain.renew(domain.anything(type_)) for domain in self.domains]) for type_ in outputs]
        control = _CONTROL.get(primitive)
        if control is not None:
            given = control(self, equation, read, types)
            return [tuple([domain.renew(fact) for domain, fact in zip(self.domains, known)]) for known in given]
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
                results = domain.finish(call, facts, results)
                assert len(results) == len(outputs), primitive
                self._results[at][whole] = results
            columns.append(results)
        return list(zip(*columns))

    @staticmethod
    def _by_rule(domain: Domain[Any], call: OpCall, facts: Sequence[Any]) -> Sequence[Any] | None:
        rule = domain.rules.get(call.primitive) or domain.kinds.get(call.primitive.kind)
        try:
            return None if rule is None else rule(domain, call, facts)
        except OpstageError:  # a relation of sizes is undecided
            return None

    def _by_parts(
        self, key: tuple[Any, ...], static: Static, inputs: tuple[TensorType, ...], read: Sequence[Facts]
    ) -> list[Facts]:
        """Return the results of an op's decomposition; none if it has none or cannot be recorded."""
        primitive = key[0]
        if key not in self._decompositions:
            self._decompositions[key] = _parts(primitive, static, inputs)
        body = self._decompositions[key]
        return [] if body is None else self.run_outputs(body, read)


def _parts(primitive: Primitive, static: Static, inputs: tuple[TensorType, ...]) -> Body | None:
    if primitive.decomposition is None:
        return None
    try:
        return Expander(lambda *call: True, False).parts(primitive, inputs, static)
    except (OpstageError, TypeError, ValueError):  # it reads values, or symbolic sizes
        return None


# Loops and branches: carries are followed from iteration to iteration until they are stable ---------------------------

_EXACT = 2  # rounds before widening
_MOST = 24  # rounds before the carries are taken as unknown
_NARROWING = 3  # rounds after widening

Step: TypeAlias = "Callable[[Sequence[Facts]], tuple[list[Facts], list[Facts]]]"
"""(carries) -> the results of an iteration, the new carries first, and these carries as the next iteration reads
them.
"""
Limits: TypeAlias = "tuple[Any, ...]"
"""The limits of a carry in the order of the domains; None for no limit."""


def scan(run: Interpretation, equation: Equation, read: Sequence[Facts], types: Sequence[TensorType]) -> list[Facts]:
    """Return the facts of a scan, a loop over the leading axis of its xs."""
    loop = ScanParameters(**equation.static)
    length, carries, split = loop.length, loop.carries, loop.carries + loop.entries
    domains = run.domains
    for domain in domains:
        domain.enter(length)
    init = [_each(run, lambda d, f: d.invariant(f, length), known) for known in read[:carries]]
    xs = [
        tuple([domain.entry(fact, type_, length) for domain, fact in zip(domains, known)])
        for known, type_ in zip(read[carries:split], types[carries:split])
    ]
    captured = [_each(run, lambda d, f: d.invariant(f, length), known) for known in read[split:]]

    def step(carried: Sequence[Facts]) -> tuple[list[Facts], list[Facts]]:
        outs = run.run_outputs(loop.body, [*carried, *xs, *captured])
        return outs, [_each(run, lambda d, f: d.next_carry(f, length, loop.reverse), o) for o in outs[:carries]]

    def unknown(at: int) -> Facts:
        type_ = loop.body.input_types[at]
        return tuple([d.invariant(d.anything(type_), length) for d in domains])

    def limits(carried: Sequence[Facts]) -> list[Limits]:
        return _limits(run, loop.body, init, carried, [*xs, *captured], length)

    outs = _fixpoint(run, init, step, unknown, limits, length if isinstance(length, int) else None)
    for domain in domains:
        domain.leave()
    final = [
        tuple([d.join(a, d.last(b, length)) for d, a, b in zip(domains, before, after)])
        for before, after in zip(read[:carries], outs[:carries])
    ]
    return [*final, *[_each(run, lambda d, f: d.stacked(f, length), known) for known in outs[carries:]]]


def switch(run: Interpretation, equation: Equation, read: Sequence[Facts], types: Sequence[TensorType]) -> list[Facts]:
    """Return the facts of a choice: the join of all branches, influenced by the index."""
    index, operands = read[0], read[1:]
    found = [run.run_outputs(body, operands) for body in get_branches(equation.static)]
    results = found[0]
    for other in found[1:]:
        results = [_join(run, a, b) for a, b in zip(results, other)]
    return [_influence(run, known, index) for known in results]


def remat(run: Interpretation, equation: Equation, read: Sequence[Facts], types: Sequence[TensorType]) -> list[Facts]:
    """Return the facts of a rematerialised body, which are those of its results."""
    return list(run.run_outputs(equation.static["body"], read))


def while_loop(
    run: Interpretation, equation: Equation, read: Sequence[Facts], types: Sequence[TensorType]
) -> list[Facts]:
    """Return the facts of a while loop: a carry may be that of any iteration, and depends on the test.

    The body runs on carries that satisfy the test; the carries after the loop do not satisfy it.
    """
    loop = WhileParameters(**equation.static)
    count = len(loop.body.outputs)
    captured = read[count:]

    def step(carried: Sequence[Facts]) -> tuple[list[Facts], list[Facts]]:
        (test,) = run.run_outputs(loop.test, [*carried, *captured])
        outs = run.run_outputs(loop.body, [*refine(run, carried, test, True), *captured])
        decided = [_influence(run, _join(run, a, b), test) for a, b in zip(carried, outs)]
        return decided, [_influence(run, known, test) for known in outs]

    def unknown(at: int) -> Facts:
        return tuple([d.anything(types[at]) for d in run.domains])

    def iteration(at: int, carried: Sequence[Facts]) -> tuple[list[Any], list[Any]]:
        """Return the facts, in one domain, of the carries that satisfy the test, and of all slots of the body then."""
        carried = _renew(run, carried)
        (test,) = run.run_outputs(loop.test, [*carried, *captured])
        within = refine(run, carried, test, True)
        slots = run.run_body(loop.body, [*within, *captured])
        return [known[at] for known in within], [known and known[at] for known in slots]

    def limits(carried: Sequence[Facts]) -> list[Limits]:
        trips = [
            domain.bound_trips(loop.body, [known[at] for known in read[:count]], partial(iteration, at, carried))
            for at, domain in enumerate(run.domains)
        ]
        most = min([each.most for each in trips if each.most is not None], default=loop.limit)  # more are an error
        known = [tuple([t.counters.get(i, f) for t, f in zip(trips, facts)]) for i, facts in enumerate(carried)]
        found = _limits(run, loop.body, read[:count], known, captured, most)
        return [tuple([t.counters.get(i, f) for t, f in zip(trips, limits)]) for i, limits in enumerate(found)]

    found = _renew(run, _fixpoint(run, read[:count], step, unknown, limits))
    (last,) = run.run_outputs(loop.test, [*found, *captured])
    return refine(run, found, last, False)


def refine(run: Interpretation, carried: Sequence[Facts], test: Facts, holds: bool) -> list[Facts]:
    """Return the carries where the test holds, or where it does not."""
    columns = [domain.refine([known[i] for known in carried], test[i], holds) for i, domain in enumerate(run.domains)]
    return list(zip(*columns)) if carried else []


def _fixpoint(
    run: Interpretation,
    init: Sequence[Facts],
    step: Step,
    unknown: Callable[[int], Facts],
    limits: Callable[[Sequence[Facts]], Sequence[Limits]],
    iterations: int | None = None,
) -> list[Facts]:
    """Return the results of `step` for carries that hold before every iteration.

    If the number of iterations is at most the number of rounds, nothing is widened: one round follows each iteration.
    Otherwise carries are widened until they are stable, intersected with the known limits, and narrowed as long as
    another round confirms them. Remarks from intermediate rounds are dropped.
    """
    if iterations is not None and 1 <= iterations <= _MOST:
        return _iterate(run, init, step, iterations)
    carried, marks = _widen(run, init, step)
    if carried is None:
        carried = [unknown(at) for at in range(len(init))]
    else:
        found = limits(carried)
        limited, met = _limit_step(run, step, found), _meet(run, carried, found)
        if met != carried and _holds(run, init, limited, met):
            carried, step = met, limited
        carried = _narrow(run, init, step, carried)
    for domain, mark in zip(run.domains, marks):
        domain.forget(mark)
    for first, every in zip(init, carried):
        for domain, before, after in zip(run.domains, first, every):
            domain.note_growth(before, after)
    return step(_renew(run, carried))[0]


def _iterate(run: Interpretation, init: Sequence[Facts], step: Step, iterations: int) -> list[Facts]:
    """Return the results of a few iterations, one round for each."""
    carried = list(init)
    for _ in range(iterations):
        outs, following = step(_renew(run, carried))
        joined = [_join(run, a, b) for a, b in zip(carried, following)]
        if _within(run, joined, carried):
            break
        carried = joined
    return outs


def _widen(run: Interpretation, init: Sequence[Facts], step: Step) -> tuple[list[Facts] | None, list[object]]:
    """Return stable carries, None if too many rounds pass; and the marks of the domains after the first iteration.

    The remarks of the first iteration hold.
    """
    carried, marks = list(init), list[object]()
    for turn in range(_MOST):
        _, following = step(_renew(run, carried))
        marks = marks or [domain.mark() for domain in run.domains]
        joined = [_join(run, a, b) for a, b in zip(carried, following)]
        if _within(run, joined, carried):
            return carried, marks
        if turn >= _EXACT:
            joined = [
                tuple([d.widen(a, b) for d, a, b in zip(run.domains, old, new)]) for old, new in zip(carried, joined)
            ]
        carried = joined
    return None, marks


def _narrow(run: Interpretation, init: Sequence[Facts], step: Step, carried: list[Facts]) -> list[Facts]:
    """Return the least stable carries within a few rounds from these."""
    for _ in range(_NARROWING):
        _, following = step(_renew(run, carried))
        joined = [_join(run, a, b) for a, b in zip(init, following)]
        if _within(run, carried, joined) or not _holds(run, init, step, joined):
            break
        carried = joined
    return carried


def _holds(run: Interpretation, init: Sequence[Facts], step: Step, carried: Sequence[Facts]) -> bool:
    """Return whether the carries hold before the first iteration, and are stable under an iteration."""
    _, following = step(_renew(run, carried))
    return _within(run, [_join(run, a, b) for a, b in zip(init, following)], carried)


def _limits(
    run: Interpretation,
    body: Body,
    init: Sequence[Facts],
    carried: Sequence[Facts],
    others: Sequence[Facts],
    iterations: Dim | None,
) -> list[Limits]:
    columns = [
        domain.limits_of_carries(
            LoopFacts(body, [f[i] for f in init], [f[i] for f in carried], [f[i] for f in others], iterations)
        )
        for i, domain in enumerate(run.domains)
    ]
    return list(zip(*columns))


def _meet(run: Interpretation, carried: Sequence[Facts], limits: Sequence[Limits]) -> list[Facts]:
    """Return the carries within their limits."""
    return [
        tuple([f if limit is None else limit for f, limit in zip(known, found)])
        for known, found in zip(carried, limits, strict=True)
    ]


def _limit_step(run: Interpretation, step: Step, limits: Sequence[Limits]) -> Step:
    """Return `step` with new carries within their limits, for an iteration that started within them."""

    def limit(known: Facts, found: Limits) -> Facts:
        return tuple([f if m is None else d.limit(f, m) for d, f, m in zip(run.domains, known, found)])

    def stepped(carried: Sequence[Facts]) -> tuple[list[Facts], list[Facts]]:
        outs, following = step(carried)
        first = [limit(known, found) for known, found in zip(outs, limits)]
        return [*first, *outs[len(limits) :]], [limit(known, found) for known, found in zip(following, limits)]

    return stepped


def _renew(run: Interpretation, carried: Sequence[Facts]) -> list[Facts]:
    """Return the carries as tensors of a separate iteration."""
    return [_each(run, lambda d, f: d.renew(f), known) for known in carried]


def _within(run: Interpretation, new: Sequence[Facts], old: Sequence[Facts]) -> bool:
    return all(d.leq(a, b) for known, other in zip(new, old) for d, a, b in zip(run.domains, known, other))


def _each(run: Interpretation, change: Callable[[Any, Any], Any], known: Facts) -> Facts:
    return tuple([change(domain, fact) for domain, fact in zip(run.domains, known)])


def _join(run: Interpretation, a: Facts, b: Facts) -> Facts:
    return tuple([domain.join(x, y) for domain, x, y in zip(run.domains, a, b)])


def _influence(run: Interpretation, known: Facts, by: Facts) -> Facts:
    return tuple([domain.influence(fact, other) for domain, fact, other in zip(run.domains, known, by)])


_CONTROL: Mapping[Primitive, Callable[[Any, Equation, Sequence[Facts], Sequence[TensorType]], list[Facts]]] = {
    REMAT: remat,
    SCAN: scan,
    SWITCH: switch,
    WHILE: while_loop,
}
