"""The pipeline: runs passes in order, with notes about each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import NamedTuple, TypeAlias, final

from ....ops.closed import Body
from ...codegen.decomposition import Keep
from ...control import inner_bodies
from ..graph import Graph
from .common import common_subexpressions
from .dead_code import dead_code
from .expansion import expand
from .folding import fold_constants
from .hoisting import hoist
from .identities import simplify

Pass: TypeAlias = Callable[[Body], Body]

Passes: TypeAlias = Sequence[tuple[str, Pass]]
"""Passes by name, in order."""


class Note(NamedTuple):
    """The effect of one pass: the number of added equations (negative if removed), and its time in seconds.

    Equations in the bodies of loops count once.
    """

    name: str
    added: int
    seconds: float


@final
class Notes:
    """The effect of a pipeline on a graph; `str` is a table."""

    __slots__ = ("before", "after", "passes")

    def __init__(self, before: int, after: int, passes: Sequence[Note]):
        self.before = before
        self.after = after
        self.passes = tuple(passes)

    def __str__(self) -> str:
        width = max([4, *[len(note.name) for note in self.passes]])
        lines = [f"{'pass':{width}}  {'ops':>7}  {'ms':>7}"]
        for note in self.passes:
            shown = f"{note.added:+d}" if note.added else "0"
            lines.append(f"{note.name:{width}}  {shown:>7}  {note.seconds * 1e3:>7.1f}")
        lines.append(f"{self.before} ops became {self.after}")
        return "\n".join(lines)


def standard(keep: Keep, *, loops: bool = False) -> Passes:
    """Return the passes of an executor with kernels for the composites that `keep` selects; see `expand` for `loops`.

    Each pass runs once: a second round would find little, and recording waits for it.
    """
    return (
        ("expansion", lambda body: expand(body, keep, loops=loops)),
        ("constant folding", fold_constants),
        ("identities", simplify),
        ("common subexpressions", common_subexpressions),
        ("hoisting", hoist),
        ("dead code", dead_code),
    )


def optimise(graph: Graph, passes: Passes, *, checked: bool = False) -> tuple[Graph, Notes]:
    """Run all passes on a graph; return the graph and notes about each pass.

    A pass runs on the graph's body and on the bodies of its loops. With `checked`, the graph's invariants are checked
    after every pass; a GraphError names the violated rule.
    """
    notes: list[Note] = []
    body = graph.body
    before = size = _size(body)
    for name, run in passes:
        start = perf_counter()
        result = through_loops(body, run)
        seconds, old = perf_counter() - start, size
        if result is not body:
            body, size = result, _size(result)
        notes.append(Note(name, size - old, seconds))
        if checked:
            from ..checker import check_graph

            check_graph(graph.with_body(body))
    return (graph if body is graph.body else graph.with_body(body)), Notes(before, size, notes)


def through_loops(body: Body, run: Pass) -> Body:
    """Apply `run` to the body, then to the bodies of its loops and branches."""
    body = run(body)
    done: dict[Body, Body] = {}
    equations = list(body.equations)
    for i, name, inner in inner_bodies(body):
        if inner not in done:
            done[inner] = through_loops(inner, run)
        if done[inner] is not inner:
            equations[i] = equations[i]._replace(static={**equations[i].static, name: done[inner]})
    return body if all(result is inner for inner, result in done.items()) else body.replace(equations=equations)


def _size(body: Body) -> int:
    """Return the number of equations, including those in the bodies of loops."""
    return len(body.equations) + sum(_size(inner.body) for inner in inner_bodies(body))
