"""Loops and branches on facts: what is carried from iteration to iteration is followed until it stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from ..interpreters.branching import branches_of
from ..ops.closed import Body, Equation, ScanParameters, WhileParameters
from ..ops.dims import Dim
from ..ops.types import TensorType
from .domain import LoopFacts
from .trips import assumed, ranges_at, trips_of

if TYPE_CHECKING:
    from .interpret import Facts, Interpretation

_EXACT = 2  # rounds before widening
_MOST = 24  # rounds before what is carried is given up
_NARROWING = 3  # rounds after it

Step: TypeAlias = "Callable[[Sequence[Facts]], tuple[list[Facts], list[Facts]]]"
"""(carries) -> the results of an iteration, of which the new carries are the first, and these as the next one takes
them."""
Limits: TypeAlias = "tuple[Any, ...]"
"""The limits of a carry in the order of the domains; None where a domain knows none."""


def scan(run: Interpretation, equation: Equation, read: Sequence[Facts], types: Sequence[TensorType]) -> list[Facts]:
    """A loop over the leading axis of its xs."""
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
        outs = run.outputs_of(loop.body, [*carried, *xs, *captured])
        return outs, [_each(run, lambda d, f: d.following(f, length, loop.reverse), o) for o in outs[:carries]]

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
    """A choice: what any branch gives, and the index decides."""
    index, operands = read[0], read[1:]
    found = [run.outputs_of(body, operands) for body in branches_of(equation.static)]
    results = found[0]
    for other in found[1:]:
        results = [_join(run, a, b) for a, b in zip(results, other)]
    return [_influenced(run, known, index) for known in results]


def while_loop(
    run: Interpretation, equation: Equation, read: Sequence[Facts], types: Sequence[TensorType]
) -> list[Facts]:
    """A loop that a test ends: what is carried may be that of any iteration, and the test decides of which.

    The body runs on carries for which the test holds; for those behind the loop it does not.
    """
    loop = WhileParameters(**equation.static)
    count = len(loop.body.outputs)
    captured = read[count:]

    def step(carried: Sequence[Facts]) -> tuple[list[Facts], list[Facts]]:
        (test,) = run.outputs_of(loop.test, [*carried, *captured])
        outs = run.outputs_of(loop.body, [*assumed(run, carried, test, True), *captured])
        decided = [_influenced(run, _join(run, a, b), test) for a, b in zip(carried, outs)]
        return decided, [_influenced(run, known, test) for known in outs]

    def unknown(at: int) -> Facts:
        return tuple([d.anything(types[at]) for d in run.domains])

    def limits(carried: Sequence[Facts]) -> list[Limits]:
        trips, at = trips_of(run, loop, read, carried), ranges_at(run)
        most = loop.limit if trips.most is None else trips.most  # one iteration more than is declared is an error
        known = [_with(f, at, trips.counters.get(i)) for i, f in enumerate(carried)]
        found = _limits(run, loop.body, read[:count], known, captured, most)
        return [_with(limits, at, trips.counters.get(i)) for i, limits in enumerate(found)]

    found = _made(run, _fixpoint(run, read[:count], step, unknown, limits))
    (last,) = run.outputs_of(loop.test, [*found, *captured])
    return assumed(run, found, last, False)


def _with(known: tuple[Any, ...], at: int | None, fact: Any) -> tuple[Any, ...]:
    """The facts with another one in a place, if there is one."""
    return known if at is None or fact is None else (*known[:at], fact, *known[at + 1 :])


def _fixpoint(
    run: Interpretation,
    init: Sequence[Facts],
    step: Step,
    unknown: Callable[[int], Facts],
    limits: Callable[[Sequence[Facts]], Sequence[Limits]],
    iterations: int | None = None,
) -> list[Facts]:
    """The results of `step` for carries that hold before every iteration; it gives results, and what comes in next.

    If there are no more iterations than rounds nothing is widened: after that many rounds the carries hold before each.
    Otherwise carries are widened until they stay, met with the limits that are known of them, and narrowed as far as
    another round confirms; what is remarked on the way is forgotten.
    """
    if iterations is not None and 1 <= iterations <= _MOST:
        return _followed(run, init, step, iterations)
    carried, marks = _widened(run, init, step)
    if carried is None:
        carried = [unknown(at) for at in range(len(init))]
    else:
        found = limits(carried)
        limited, met = _limiting(run, step, found), _met(run, carried, found)
        if met != carried and _holds(run, init, limited, met):
            carried, step = met, limited
        carried = _narrowed(run, init, step, carried)
    for domain, mark in zip(run.domains, marks):
        domain.forget(mark)
    for first, every in zip(init, carried):
        for domain, before, after in zip(run.domains, first, every):
            domain.grown(before, after)
    return step(_made(run, carried))[0]


def _followed(run: Interpretation, init: Sequence[Facts], step: Step, iterations: int) -> list[Facts]:
    """The results of all of a few iterations, one round for each."""
    carried = list(init)
    for _ in range(iterations):
        outs, following = step(_made(run, carried))
        joined = [_join(run, a, b) for a, b in zip(carried, following)]
        if _within(run, joined, carried):
            break
        carried = joined
    return outs


def _widened(run: Interpretation, init: Sequence[Facts], step: Step) -> tuple[list[Facts] | None, list[object]]:
    """Carries that an iteration leaves as they are, None where they are not found in time; and the marks of the
    domains behind the first iteration, whose remarks hold."""
    carried, marks = list(init), list[object]()
    for turn in range(_MOST):
        _, following = step(_made(run, carried))
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


def _narrowed(run: Interpretation, init: Sequence[Facts], step: Step, carried: list[Facts]) -> list[Facts]:
    """The least carries among a few rounds from these on that an iteration leaves as they are."""
    for _ in range(_NARROWING):
        _, following = step(_made(run, carried))
        joined = [_join(run, a, b) for a, b in zip(init, following)]
        if _within(run, carried, joined) or not _holds(run, init, step, joined):
            break
        carried = joined
    return carried


def _holds(run: Interpretation, init: Sequence[Facts], step: Step, carried: Sequence[Facts]) -> bool:
    """Whether the carries hold before the first iteration, and after one before which they do."""
    _, following = step(_made(run, carried))
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


def _met(run: Interpretation, carried: Sequence[Facts], limits: Sequence[Limits]) -> list[Facts]:
    """The carries within their limits."""
    return [
        tuple([f if limit is None else limit for f, limit in zip(known, found)])
        for known, found in zip(carried, limits, strict=True)
    ]


def _limiting(run: Interpretation, step: Step, limits: Sequence[Limits]) -> Step:
    """`step`, whose new carries are within their limits after an iteration that began within them."""

    def limited(known: Facts, found: Limits) -> Facts:
        return tuple([f if m is None else d.limited(f, m) for d, f, m in zip(run.domains, known, found)])

    def stepped(carried: Sequence[Facts]) -> tuple[list[Facts], list[Facts]]:
        outs, following = step(carried)
        first = [limited(known, found) for known, found in zip(outs, limits)]
        return [*first, *outs[len(limits) :]], [limited(known, found) for known, found in zip(following, limits)]

    return stepped


def _made(run: Interpretation, carried: Sequence[Facts]) -> list[Facts]:
    """The carries as tensors of an iteration of their own."""
    return [_each(run, lambda d, f: d.made(f), known) for known in carried]


def _within(run: Interpretation, new: Sequence[Facts], old: Sequence[Facts]) -> bool:
    return all(d.leq(a, b) for known, other in zip(new, old) for d, a, b in zip(run.domains, known, other))


def _each(run: Interpretation, change: Callable[[Any, Any], Any], known: Facts) -> Facts:
    return tuple([change(domain, fact) for domain, fact in zip(run.domains, known)])


def _join(run: Interpretation, a: Facts, b: Facts) -> Facts:
    return tuple([domain.join(x, y) for domain, x, y in zip(run.domains, a, b)])


def _influenced(run: Interpretation, known: Facts, by: Facts) -> Facts:
    return tuple([domain.influenced(fact, other) for domain, fact, other in zip(run.domains, known, by)])
