"""Passes: functions from a body to an equivalent body, and the pipeline that runs them in order, with notes about each.

A pass returns the same object if it changes nothing. Its result can be run but not differentiated: derivatives were
taken when the program was recorded. A pass sees one body; the pipeline applies it to the bodies of loops.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from time import perf_counter
from typing import NamedTuple, TypeAlias

from ....compiler.codegen.composites import Expander, Keep, hoisted, stays
from ....ops.body import Body, ScanParameters, with_opened
from ....ops.primitive import Effect
from ....transforms.control_flow import inner_bodies
from ....transforms.scan import SCAN
from ..graph import Graph
from .constants import fold_constants
from .cse import common_subexpressions, static_key
from .identities import simplify
from .rewrite import Rewrite

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


class Notes(NamedTuple):
    """The effect of a pipeline on a graph, of `before` equations; `str` is a table."""

    before: int
    after: int
    passes: tuple[Note, ...]

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


def run_passes(graph: Graph, passes: Passes, *, checked: bool = False) -> tuple[Graph, Notes]:
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
    return (graph if body is graph.body else graph.with_body(body)), Notes(before, size, tuple(notes))


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


# Expansion ------------------------------------------------------------------------------------------------------------


def expand(body: Body, keep: Keep, *, loops: bool = False) -> Body:
    """Expand composites recursively, except those that `keep` selects.

    The parts have the region and ordinal of the composite. With `loops`, loops are unrolled.
    """
    rewrite = Rewrite(body)
    types = rewrite.types
    written: dict[Hashable, Body] = {}  # each decomposition runs once per operand types
    for equation in body.equations:
        primitive, static = equation.primitive, equation.static
        inputs = rewrite.inputs(equation)
        if primitive.decomposition is None:
            rewrite.keep(equation, inputs)
            continue
        operands = tuple([types[slot] for slot in inputs])
        if stays(keep, primitive, operands, static, loops):
            rewrite.keep(equation, inputs)
            continue
        key = (primitive, operands, static_key(static))
        parts = written.get(key)
        if parts is None:
            parts = written[key] = Expander(keep, loops).parts(primitive, operands, static)
        rewrite.replace(equation.outputs, rewrite.inline(parts, inputs, equation))
    return rewrite.close()


# Hoisting -------------------------------------------------------------------------------------------------------------


def hoist(body: Body) -> Body:
    """Move the invariants of each loop out of it; the loop captures them."""
    rewrite = Rewrite(body)
    for equation in body.equations:
        inputs = rewrite.inputs(equation)
        parts = None
        if equation.primitive is SCAN:
            loop = ScanParameters(**equation.static)
            split = loop.carries + loop.entries
            if isinstance(loop.length, int) and loop.length > 1:
                parts = hoisted(loop.body, split)
        if parts is None:
            rewrite.keep(equation, inputs)
            continue
        before, rest = parts
        operands = (*inputs, *rewrite.inline(before, inputs[split:], equation))
        read = rest.read()
        kept = [i for i, slot in enumerate(rest.inputs) if i < split or slot in read]
        static = {**equation.static, "body": rest.taking([rest.inputs[i] for i in kept])}
        types = [body.types[slot] for slot in equation.outputs]
        results = rewrite.write(SCAN, tuple([operands[i] for i in kept]), static, types, equation)
        rewrite.replace(equation.outputs, results)
    return rewrite.close()


# Dead code ------------------------------------------------------------------------------------------------------------


def dead_code(body: Body) -> Body:
    """Remove dead code. An equation stays whole while one of its results is read.

    An op that would raise (an index out of range) is removed like any other if its result is unused; ops with external
    effects stay.
    """
    read = set(body.outputs)
    kept = []
    for equation in reversed(body.equations):
        if not read.isdisjoint(equation.outputs) or Effect.EXTERNAL in equation.effects:
            read.update(equation.inputs)
            kept.append(equation)
    constants = [constant for constant in body.constants if constant.slot in read]
    if len(kept) == len(body.equations) and len(constants) == len(body.constants):
        return body
    kept.reverse()
    return body.replace(equations=with_opened(kept, body.outputs), constants=constants)
