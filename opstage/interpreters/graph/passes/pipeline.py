"""The pipeline: passes run one after the other until they find nothing more, and notes of what each did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple, TypeAlias, final

from ....ops.closed import Body, Equation
from ...structural import SCAN
from ..graph import Graph
from .common import common_subexpressions
from .dead_code import dead_code
from .expansion import Keep, expand, keep_none
from .folding import fold_constants
from .identities import simplify
from .layout import fold_transposes

Pass: TypeAlias = Callable[[Body], Body]

MOST_ROUNDS = 8
"""How often a group of passes is gone through at most; programs settle in two or three rounds."""


class Stage(NamedTuple):
    """Passes that help each other: they are gone through again as long as one of them finds something to do."""

    passes: tuple[tuple[str, Pass], ...]


class Note(NamedTuple):
    """What one pass did, all its runs together.

    removed, added      equations fewer, or more, those in the bodies of loops counted once
    seconds             that it took
    """

    name: str
    runs: int
    removed: int
    added: int
    seconds: float


@final
class Notes:
    """What a pipeline did to a graph; `str` is a table of it."""

    __slots__ = ("before", "after", "passes")

    def __init__(self, before: int, after: int, passes: Sequence[Note]):
        self.before = before
        self.after = after
        self.passes = tuple(passes)

    def __str__(self) -> str:
        width = max([4, *[len(note.name) for note in self.passes]])
        lines = [f"{'pass':{width}}  {'runs':>4}  {'ops':>7}  {'ms':>7}"]
        for note in self.passes:
            change = note.added - note.removed
            shown = f"{change:+d}" if change else "0"
            lines.append(f"{note.name:{width}}  {note.runs:>4}  {shown:>7}  {note.seconds * 1e3:>7.1f}")
        lines.append(f"{self.before} ops became {self.after}")
        return "\n".join(lines)


def standard(keep: Keep = keep_none, *, exact: bool = True) -> tuple[Stage, ...]:
    """The pipeline of an executor that has kernels for the composites which `keep` names."""
    return (
        Stage((("expansion", lambda body: expand(body, keep)),)),
        Stage(
            (
                ("constant folding", fold_constants),
                ("identities", lambda body: simplify(body, exact=exact)),
                ("common subexpressions", common_subexpressions),
                ("dead code", dead_code),
            )
        ),
        Stage((("layout", fold_transposes), ("dead code", dead_code))),
    )


def optimise(graph: Graph, stages: Sequence[Stage] | None = None, *, checked: bool = False) -> tuple[Graph, Notes]:
    """The graph after every stage, and what each pass did; by default the `standard` ones.

    A pass sees the graph's body, and that of every loop in it. With `checked` the form of the graph is checked after
    every run of a pass, and a GraphError says which rule it broke.
    """
    ledger: dict[str, list[float]] = {}
    body = graph.body
    before = _size(body)
    for stage in standard() if stages is None else stages:
        for _ in range(MOST_ROUNDS if len(stage.passes) > 1 else 1):
            start = body
            for name, run in stage.passes:
                body = _run(name, run, graph, body, ledger, checked)
            if body is start:
                break
    notes = [Note(name, int(e[0]), int(e[1]), int(e[2]), e[3]) for name, e in ledger.items()]
    return (graph if body is graph.body else graph.with_body(body)), Notes(before, _size(body), notes)


def _run(name: str, run: Pass, graph: Graph, body: Body, ledger: dict[str, list[float]], checked: bool) -> Body:
    start = perf_counter()
    result = through_loops(body, run)
    seconds = perf_counter() - start
    entry = ledger.setdefault(name, [0, 0, 0, 0.0])
    change = _size(result) - _size(body) if result is not body else 0
    entry[0] += 1
    entry[1 if change < 0 else 2] += abs(change)
    entry[3] += seconds
    if checked:
        from ..checker import check_graph

        check_graph(graph.with_body(result))
    return result


def through_loops(body: Body, run: Pass) -> Body:
    """`run` of the body, and of the bodies of the loops that are in it then."""
    body = run(body)
    equations: list[Equation] | None = None
    done: dict[Body, Body] = {}
    for i, equation in enumerate(body.equations):
        if equation.primitive is not SCAN:
            continue
        inner: Body = equation.static["body"]
        result = done.get(inner)
        if result is None:
            result = done[inner] = through_loops(inner, run)
        if result is not inner:
            if equations is None:
                equations = list(body.equations)
            equations[i] = equation._replace(static={**equation.static, "body": result})
    return body if equations is None else body.replace(equations=equations)


def _size(body: Body) -> int:
    """Equations, those in the bodies of loops among them."""
    return len(body.equations) + sum(_size(e.static["body"]) for e in body.equations if e.primitive is SCAN)
