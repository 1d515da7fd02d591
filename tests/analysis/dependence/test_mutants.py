"""Rules made wrong, one at a time: runs show each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from opstage.analysis import interpretation
from opstage.analysis.dependence import Dependence, fact, layout, positions, regions
from opstage.analysis.dependence import elementwise as pointwise
from opstage.analysis.dependence import reduction as mixing
from opstage.analysis.dependence.fact import NONE, Fact, Span
from opstage.ops import convolution, elementwise, logic, pooling, reduction, sequence
from opstage.ops import indexing as rows
from opstage.ops import matmul as linalg
from opstage.ops.layout import BROADCAST_TO, PERMUTE, RESHAPE
from opstage.ops.primitive import Kind
from opstage.ops.slicing import CONCAT, PAD, SLICE
from tests.analysis.dependence.test_soundness import wrong

Patch = pytest.MonkeyPatch


def _rule(primitive: Any, change: Callable[..., Any]) -> Callable[[Patch], None]:
    """A mutant of a rule: `change(right rule)(domain, call, facts)`."""

    def apply(patch: Patch) -> None:
        right = Dependence.rules[primitive]
        patch.setattr(Dependence, "rules", {**Dependence.rules, primitive: change(right)})

    return apply


def _called(primitive: Any, **other: Any) -> Callable[[Patch], None]:
    """The right rule, told other static parameters."""
    return _rule(
        primitive,
        lambda right: lambda domain, call, facts: right(domain, call._replace(static={**call.static, **other}), facts),
    )


def _attribute(owner: Any, name: str, change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(owner, name, change(getattr(owner, name)))


def _kept(right: Any) -> Any:
    """Reads stay where they were, whatever the op does to the axes."""

    def rule(domain: Any, call: Any, facts: Any) -> Any:
        out = call.outputs[0].shape
        count = len(out)
        reads = tuple([(i, span) for i, span in facts[0].reads if i < count])
        return [Fact(facts[0].outer, tuple([(size,) for size in out]), reads, False, facts[0].inputs)]

    return rule


def _without_reads_of(operand: int) -> Callable[[Any], Any]:
    def change(right: Any) -> Any:
        def rule(domain: Any, call: Any, facts: Any) -> Any:
            idle = [f._replace(reads=(), whole=False) if i == operand else f for i, f in enumerate(facts)]
            return right(domain, call, idle)

        return rule

    return change


def _pointwise(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        patch.setattr(Dependence, "kinds", {Kind.POINTWISE: change(pointwise.pointwise)})

    return apply


def _first_operand(right: Any) -> Any:
    return lambda domain, call, facts: right(
        domain, call, [facts[0], *[f._replace(reads=(), whole=False) for f in facts[1:]]]
    )


def _in(table: str, primitive: Any, entry: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(positions, table, {**getattr(positions, table), primitive: entry})


def _first_value(call: Any, values: Any, sizes: Any) -> Any:
    return values[0]


def _absorbing(primitive: Any, pairs: Any) -> Callable[[Patch], None]:
    return lambda patch: patch.setattr(pointwise, "_ABSORBING", {**pointwise._ABSORBING, primitive: pairs})


def _never_bad(patch: Patch) -> None:
    """An absorbing operand is one whatever it stands beside."""
    table = {op: [rule._replace(unless=()) for rule in rules] for op, rules in pointwise._ABSORBING.items()}
    patch.setattr(pointwise, "_ABSORBING", table)


def _less_by_two(found: Any) -> Any:
    if found is None or found.value is None:
        return found
    return found._replace(value=found.value._replace(constant=found.value.constant - 2))


def _swapped_select(right: Any) -> Any:
    def rule(domain: Any, call: Any, facts: Any) -> Any:
        if call.primitive is logic.SELECT:
            facts = [facts[0], facts[2]._replace(reads=facts[1].reads), facts[1]._replace(reads=facts[2].reads)]
        return right(domain, call, facts)

    return rule


def _other_way(right: Any) -> Any:
    return lambda where, index, distance: right(where, index, -distance)


MUTANTS: dict[str, tuple[Callable[[Patch], None], Sequence[str]]] = {
    "permute keeps its axes": (_rule(PERMUTE, _kept), ["attention across", "unfolded badly"]),
    "reshape keeps its axes": (_rule(RESHAPE, _kept), ["folded badly", "unfolded badly"]),
    "broadcast keeps the one index": (_rule(BROADCAST_TO, _kept), ["first everywhere", "last everywhere"]),
    "slice from the start": (_called(SLICE, start=0), ["moved back", "every other"]),
    "slice without its step": (_called(SLICE, step=1), ["every other"]),
    "pad behind": (
        _rule(
            PAD,
            lambda right: (
                lambda d, call, f: right(
                    d, call._replace(static={**call.static, "padding": [(b, a) for a, b in call.static["padding"]]}), f
                )
            ),
        ),
        ["moved on", "causal conv"],
    ),
    "concat without shifts": (_rule(CONCAT, _kept), ["joined", "roll"]),
    "sum reads nothing": (_rule(reduction.REDUCE_SUM, _without_reads_of(0)), ["softmax over time", "mean over time"]),
    "maximum reads nothing": (_rule(reduction.REDUCE_MAX, _without_reads_of(0)), ["maximum over time"]),
    "product reads its left": (_rule(linalg.BMM, _without_reads_of(1)), ["attention", "einsum"]),
    "product reads its right": (_rule(linalg.BMM, _without_reads_of(0)), ["times numbers"]),
    "cumsum the other way": (
        _rule(
            sequence.CUMSUM,
            lambda right: (
                lambda d, call, f: right(
                    d, call._replace(static={**call.static, "reverse": not call.static["reverse"]}), f
                )
            ),
        ),
        ["cumsum"],
    ),
    "cumsum leaves its own out": (_called(sequence.CUMSUM, exclusive=True), ["cumsum"]),
    "recurrence forgets its factors": (
        _rule(sequence.LINEAR_RECURRENCE, _without_reads_of(0)),
        ["recurrence of factors"],
    ),
    "argsort of itself": (_rule(sequence.ARGSORT, _kept), ["sorted"]),
    "rows one further on": (
        _rule(
            rows.GATHER_ROWS,
            lambda right: (
                lambda d, call, f: right(
                    d,
                    call,
                    [f[0], f[1] if f[1].value is None else f[1]._replace(value=f[1].value._replace(constant=0))],
                )
            ),
        ),
        ["picked", "picked ahead", "picked backwards"],
    ),
    "rows that read no row": (_rule(rows.GATHER_ROWS, _without_reads_of(0)), ["picked"]),
    "conv of one cell": (
        _attribute(mixing, "windowed", lambda right: lambda *a, cells, **k: right(*a, cells=[0] * len(cells), **k)),
        ["conv", "causal conv", "pool"],
    ),
    "conv without padding": (_rule(convolution.CONV, _without_reads_of(1)), ["conv"]),
    "pool of one cell": (_rule(pooling.MAX_POOL, _kept), ["pool"]),
    "ops of two read the first": (_pointwise(_first_operand), ["one minus"]),
    "select the other way": (_pointwise(_swapped_select), ["selected, less 0", "early"]),
    "less is less by two": (_in("_STRICT", logic.LESS, 2), ["selected, less 1"]),
    "at most is less": (_in("_STRICT", logic.LESS_EQUAL, 1), ["selected, less_equal 0"]),
    "sums are differences": (
        _in("_FUNCTIONS", elementwise.ADD, positions._FUNCTIONS[elementwise.SUB]),
        ["selected, less 1"],
    ),
    "absolute values are values": (
        _in("_FUNCTIONS", elementwise.ABS, _first_value),
        ["selected, far 0", "selected, far 1"],
    ),
    "negation does nothing": (
        _in("_FUNCTIONS", elementwise.NEG, _first_value),
        ["picked backwards"],
    ),
    "a sum with zero is zero": (_absorbing(elementwise.ADD, pointwise._either(0, 0, ())), ["numbers added"]),
    "nothing is bad beside -inf": (_never_bad, ["selected, less 0"]),
    "rows that are taken apart are two less": (
        _attribute(layout, "_taken_apart", lambda right: lambda x, idx: _less_by_two(right(x, idx))),
        ["flat positions"],
    ),
    "no size is large enough": (
        _attribute(pointwise, "in_sizes", lambda right: lambda where, sizes: regions.NOWHERE),
        ["selected, less 0", "wrapped"],
    ),
    "or is and": (
        _attribute(
            pointwise,
            "_evaluated",
            lambda right: (
                lambda p, s, d, v, read: (
                    all(v) if p is logic.LOGICAL_AND or p is logic.LOGICAL_OR else right(p, s, d, v, read)
                )
            ),
        ),
        ["selected, either 0", "selected, first 0"],
    ),
    "not does nothing": (
        _attribute(
            pointwise,
            "_evaluated",
            lambda right: lambda p, s, d, v, read: v[0] if p is logic.LOGICAL_NOT else right(p, s, d, v, read),
        ),
        ["selected, not greater 0"],
    ),
    "the last iteration alone": (
        _attribute(
            Dependence, "last", lambda right: lambda self, f, n: right(self, f._replace(reads=(), whole=False), n)
        ),
        ["scan last"],
    ),
    "the next iteration is this one": (
        _attribute(Dependence, "following", lambda right: lambda self, f, n, reverse: self.within(f)),
        ["scan before", "scan", "two deep"],
    ),
    "loops run backwards": (
        _attribute(Dependence, "following", lambda right: lambda self, f, n, reverse: right(self, f, n, not reverse)),
        ["scan", "scan reverse"],
    ),
    "loops end at once": (
        _attribute(interpretation, "_fixpoint", lambda right: lambda run, init, step, *more: step(list(init))[0]),
        ["scan", "total of samples", "counted"],
    ),
    "choices of nothing": (
        _attribute(Dependence, "influenced", lambda right: lambda self, f, by: f),
        ["chosen", "repeated"],
    ),
    "branches are the first one": (
        _attribute(interpretation, "_CONTROL", lambda right: {**right, interpretation.SWITCH: _first_branch}),
        ["chosen by number", "chosen"],
    ),
    "regions move the other way": (_attribute(layout, "moved", _other_way), ["padded weights", "cut weights"]),
    "through forgets how far": (
        _attribute(
            fact,
            "_through",
            lambda right: (
                lambda span, *rest: (
                    None if (found := right(span, *rest)) is None else (found[0], Span(found[1].by, 0, 0))
                )
            ),
        ),
        ["causal attention", "selected, less 0"],
    ),
    "a hull is its first span": (
        _attribute(fact, "hull", lambda right: lambda parts: dict(reversed(list(parts)))),
        ["two deep", "mean so far", "moved on by two"],
    ),
    "reads of nothing in particular": (
        _attribute(
            fact,
            "at_origin",
            lambda right: (
                lambda f, indices: f._replace(
                    reads=tuple([(i, s) for i, s in f.reads if i not in indices and i != NONE])
                )
            ),
        ),
        ["first everywhere"],
    ),
}


def _first_branch(run: Any, equation: Any, read: Any, types: Any) -> Any:
    from opstage.transforms.cond import branches_of

    return run.outputs_of(branches_of(equation.static)[-1], read[1:])


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate, steps = MUTANTS[name]
    pointwise._evaluated.cache_clear() if hasattr(pointwise._evaluated, "cache_clear") else None
    mutate(monkeypatch)
    for module in (layout, mixing, pointwise, regions):  # names that modules took at import
        for attribute in ("hull", "at_origin"):
            if hasattr(module, attribute):
                monkeypatch.setattr(module, attribute, getattr(fact, attribute))
    caught = False
    for step in steps:
        try:
            caught = caught or wrong([step]) != []
        except (AssertionError, KeyError, IndexError, ValueError):  # facts that are no longer of one shape
            caught = True
    assert caught
