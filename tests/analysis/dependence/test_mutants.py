"""Rules made wrong, one at a time: runs show each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
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
from opstage.transforms.cond import branches_of
from tests.analysis.dependence.test_soundness import wrong

# Rules of primitives: (right rule, domain, call, facts) -> facts ------------------------------------------------------


def _kept(right: Any, domain: Any, call: Any, facts: Any) -> Any:
    """Reads stay where they were, whatever the op does to the axes."""
    out = call.outputs[0].shape
    reads = tuple([(i, span) for i, span in facts[0].reads if i < len(out)])
    return [Fact(facts[0].outer, tuple([(size,) for size in out]), reads, False, facts[0].inputs)]


def _idle(operand: int, right: Any, domain: Any, call: Any, facts: Any) -> Any:
    """An operand reads nothing."""
    idle = [f._replace(reads=(), whole=False) if i == operand else f for i, f in enumerate(facts)]
    return right(domain, call, idle)


def _told(change: Callable[[Any], dict[str, Any]], right: Any, domain: Any, call: Any, facts: Any) -> Any:
    """The right rule, told other static parameters."""
    return right(domain, call._replace(static={**call.static, **change(call.static)}), facts)


def _further_on(right: Any, domain: Any, call: Any, facts: Any) -> Any:
    x, at = facts
    return right(domain, call, [x, at if at.value is None else at._replace(value=at.value._replace(constant=0))])


RULES: dict[str, tuple[Any, Callable[..., Any], list[str]]] = {
    "permute keeps its axes": (PERMUTE, _kept, ["attention across", "unfolded badly"]),
    "reshape keeps its axes": (RESHAPE, _kept, ["folded badly", "unfolded badly"]),
    "broadcast keeps the one index": (BROADCAST_TO, _kept, ["first everywhere", "last everywhere"]),
    "slice from the start": (SLICE, partial(_told, lambda static: {"start": 0}), ["moved back", "every other"]),
    "slice without its step": (SLICE, partial(_told, lambda static: {"step": 1}), ["every other"]),
    "pad behind": (
        PAD,
        partial(_told, lambda static: {"padding": [(b, a) for a, b in static["padding"]]}),
        ["moved on", "causal conv"],
    ),
    "concat without shifts": (CONCAT, _kept, ["joined", "roll"]),
    "sum reads nothing": (reduction.REDUCE_SUM, partial(_idle, 0), ["softmax over time", "mean over time"]),
    "maximum reads nothing": (reduction.REDUCE_MAX, partial(_idle, 0), ["maximum over time"]),
    "product reads its left": (linalg.BMM, partial(_idle, 1), ["attention", "einsum"]),
    "product reads its right": (linalg.BMM, partial(_idle, 0), ["times numbers"]),
    "cumsum the other way": (
        sequence.CUMSUM, partial(_told, lambda static: {"reverse": not static["reverse"]}), ["cumsum"]
    ),
    "cumsum leaves its own out": (sequence.CUMSUM, partial(_told, lambda static: {"exclusive": True}), ["cumsum"]),
    "recurrence forgets its factors": (sequence.LINEAR_RECURRENCE, partial(_idle, 0), ["recurrence of factors"]),
    "argsort of itself": (sequence.ARGSORT, _kept, ["sorted"]),
    "rows one further on": (rows.GATHER_ROWS, _further_on, ["picked", "picked ahead", "picked backwards"]),
    "rows that read no row": (rows.GATHER_ROWS, partial(_idle, 0), ["picked"]),
    "conv without padding": (convolution.CONV, partial(_idle, 1), ["conv"]),
    "pool of one cell": (pooling.MAX_POOL, _kept, ["pool"]),
}  # fmt: skip


# What all rules use: (right attribute) -> wrong one -------------------------------------------------------------------


def _first_operand(domain: Any, call: Any, facts: Any) -> Any:
    return pointwise.pointwise(domain, call, [facts[0], *[f._replace(reads=(), whole=False) for f in facts[1:]]])


def _swapped_select(domain: Any, call: Any, facts: Any) -> Any:
    if call.primitive is logic.SELECT:
        facts = [facts[0], facts[2]._replace(reads=facts[1].reads), facts[1]._replace(reads=facts[2].reads)]
    return pointwise.pointwise(domain, call, facts)


def _with(primitive: Any, entry: Any) -> Callable[[Any], Any]:
    """A table in which the primitive has another entry."""
    return lambda right: {**right, primitive: entry}


def _first_value(call: Any, values: Any, sizes: Any) -> Any:
    return values[0]


def _less_by_two(found: Any) -> Any:
    if found is None or found.value is None:
        return found
    return found._replace(value=found.value._replace(constant=found.value.constant - 2))


def _or_is_and(right: Any) -> Any:
    both = (logic.LOGICAL_AND, logic.LOGICAL_OR)
    return lambda p, s, d, v, read: all(v) if p in both else right(p, s, d, v, read)


def _nowhere_but_here(right: Any) -> Any:
    def through(span: Any, *rest: Any) -> Any:
        found = right(span, *rest)
        return None if found is None else (found[0], Span(found[1].by, 0, 0))

    return through


def _first_branch(run: Any, equation: Any, read: Any, types: Any) -> Any:
    return run.outputs_of(branches_of(equation.static)[-1], read[1:])


ATTRIBUTES: dict[str, tuple[Any, str, Callable[[Any], Any], list[str]]] = {
    "conv of one cell": (
        mixing,
        "windowed",
        lambda right: lambda *a, cells, **k: right(*a, cells=[0] * len(cells), **k),
        ["conv", "causal conv", "pool"],
    ),
    "ops of two read the first": (Dependence, "kinds", _with(Kind.POINTWISE, _first_operand), ["one minus"]),
    "select the other way": (
        Dependence, "kinds", _with(Kind.POINTWISE, _swapped_select), ["selected, less 0", "early"]
    ),
    "less is less by two": (positions, "_STRICT", _with(logic.LESS, 2), ["selected, less 1"]),
    "at most is less": (positions, "_STRICT", _with(logic.LESS_EQUAL, 1), ["selected, less_equal 0"]),
    "sums are differences": (
        positions, "_FUNCTIONS", lambda right: {**right, elementwise.ADD: right[elementwise.SUB]}, ["selected, less 1"]
    ),
    "absolute values are values": (
        positions, "_FUNCTIONS", _with(elementwise.ABS, _first_value), ["selected, far 0", "selected, far 1"]
    ),
    "negation does nothing": (positions, "_FUNCTIONS", _with(elementwise.NEG, _first_value), ["picked backwards"]),
    "a sum with zero is zero": (
        pointwise, "_ABSORBING", _with(elementwise.ADD, pointwise._either(0, 0, ())), ["numbers added"]
    ),
    "nothing is bad beside -inf": (
        pointwise,
        "_ABSORBING",
        lambda right: {op: [rule._replace(unless=()) for rule in rules] for op, rules in right.items()},
        ["selected, less 0"],
    ),
    "rows that are taken apart are two less": (
        layout, "_taken_apart", lambda right: lambda x, idx: _less_by_two(right(x, idx)), ["flat positions"]
    ),
    "no size is large enough": (
        pointwise, "in_sizes", lambda right: lambda where, sizes: regions.NOWHERE, ["selected, less 0", "wrapped"]
    ),
    "or is and": (pointwise, "_evaluated", _or_is_and, ["selected, either 0", "selected, first 0"]),
    "not does nothing": (
        pointwise,
        "_evaluated",
        lambda right: lambda p, s, d, v, read: v[0] if p is logic.LOGICAL_NOT else right(p, s, d, v, read),
        ["selected, not greater 0"],
    ),
    "the last iteration alone": (
        Dependence,
        "last",
        lambda right: lambda self, f, n: right(self, f._replace(reads=(), whole=False), n),
        ["scan last"],
    ),
    "the next iteration is this one": (
        Dependence,
        "following",
        lambda right: lambda self, f, n, reverse: self.within(f),
        ["scan before", "scan", "two deep"],
    ),
    "loops run backwards": (
        Dependence,
        "following",
        lambda right: lambda self, f, n, reverse: right(self, f, n, not reverse),
        ["scan", "scan reverse"],
    ),
    "loops end at once": (
        interpretation,
        "_fixpoint",
        lambda right: lambda run, init, step, *more: step(list(init))[0],
        ["scan", "total of samples", "counted"],
    ),
    "choices of nothing": (Dependence, "influenced", lambda right: lambda self, f, by: f, ["chosen", "repeated"]),
    "branches are the first one": (
        interpretation, "_CONTROL", _with(interpretation.SWITCH, _first_branch), ["chosen by number", "chosen"]
    ),
    "regions move the other way": (
        layout,
        "moved",
        lambda right: lambda where, index, distance: right(where, index, -distance),
        ["padded weights", "cut weights"],
    ),
    "through forgets how far": (fact, "_through", _nowhere_but_here, ["causal attention", "selected, less 0"]),
    "a hull is its first span": (
        fact,
        "hull",
        lambda right: lambda parts: dict(reversed(list(parts))),
        ["two deep", "mean so far", "moved on by two"],
    ),
    "reads of nothing in particular": (
        fact,
        "at_origin",
        lambda right: lambda f, gone: f._replace(reads=tuple([r for r in f.reads if r[0] not in (*gone, NONE)])),
        ["first everywhere"],
    ),
}  # fmt: skip
MUTANTS = {name: (Dependence, "rules", _with(op, partial(wrong, Dependence.rules[op])), steps)
           for name, (op, wrong, steps) in RULES.items()} | ATTRIBUTES  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_rule_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, change, steps = MUTANTS[name]
    pointwise._evaluated.cache_clear()
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    for module in (layout, mixing, pointwise, regions):  # names that modules took at import
        for taken in ("hull", "at_origin"):
            if hasattr(module, taken):
                monkeypatch.setattr(module, taken, getattr(fact, taken))
    caught = False
    for step in steps:
        try:
            caught = caught or wrong([step]) != []
        except (AssertionError, KeyError, IndexError, ValueError):  # facts that are no longer of one shape
            caught = True
    assert caught
