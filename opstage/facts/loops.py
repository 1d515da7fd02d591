"""Loops and branches on facts: what is carried from iteration to iteration is followed until it stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..interpreters.branching import branches_of
from ..ops.closed import Equation, ScanParameters, WhileParameters
from ..ops.types import TensorType

if TYPE_CHECKING:
    from .interpret import Facts, Interpretation

_EXACT = 2  # rounds before widening
_MOST = 24  # rounds before what is carried is given up


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

    outs = _fixpoint(run, init, step, unknown, length if isinstance(length, int) else None)
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
    """A loop that a test ends: what is carried may be that of any iteration, and the test decides of which."""
    loop = WhileParameters(**equation.static)
    count = len(loop.body.outputs)
    captured = read[count:]

    def step(carried: Sequence[Facts]) -> tuple[list[Facts], list[Facts]]:
        (test,) = run.outputs_of(loop.test, [*carried, *captured])
        outs = run.outputs_of(loop.body, [*carried, *captured])
        decided = [_influenced(run, _join(run, a, b), test) for a, b in zip(carried, outs)]
        return decided, decided

    def unknown(at: int) -> Facts:
        return tuple([d.anything(types[at]) for d in run.domains])

    return _fixpoint(run, read[:count], step, unknown)


def _fixpoint(
    run: Interpretation,
    init: Sequence[Facts],
    step: Callable[[Sequence[Facts]], tuple[list[Facts], list[Facts]]],
    unknown: Callable[[int], Facts],
    iterations: int | None = None,
) -> list[Facts]:
    """The results of `step` for carries that hold before every iteration; it gives results, and what comes in next.

    Of as few iterations as rounds are taken nothing is widened: after so many rounds the carries hold before each.
    """
    carried = list(init)
    few = iterations is not None and 1 <= iterations <= _MOST
    for turn in range(_MOST):
        outs, following = step(carried)
        joined = [_join(run, a, b) for a, b in zip(carried, following)]
        if all(d.leq(a, b) for new, old in zip(joined, carried) for d, a, b in zip(run.domains, new, old)):
            return outs
        if few and turn + 1 == iterations:
            return outs
        if turn >= _EXACT and not few:
            joined = [
                tuple([d.widen(a, b) for d, a, b in zip(run.domains, old, new)]) for old, new in zip(carried, joined)
            ]
        carried = joined
    return step([unknown(at) for at in range(len(carried))])[0]


def _each(run: Interpretation, change: Callable[[Any, Any], Any], known: Facts) -> Facts:
    return tuple([change(domain, fact) for domain, fact in zip(run.domains, known)])


def _join(run: Interpretation, a: Facts, b: Facts) -> Facts:
    return tuple([domain.join(x, y) for domain, x, y in zip(run.domains, a, b)])


def _influenced(run: Interpretation, known: Facts, by: Facts) -> Facts:
    return tuple([domain.influenced(fact, other) for domain, fact, other in zip(run.domains, known, by)])
