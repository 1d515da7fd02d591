"""Recording of programs for replay: what they read is noted, and nondeterminism is refused.

A program is recorded twice. A difference (a random number, the time, a counter) could not be replayed correctly, so it
is an error. Values that the program reads and that may change become a guard, which tells the cache when to record
again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from ...ops.closed import Body
from ...ops.errors import ProgramError, ProgramWarning, SourceLine
from ...ops.mesh import ALONE, Mesh
from ...ops.types import DType, TensorType
from ..base_program import BaseProgram
from ..captures import Capture, Guard, at_line, observed, state_of
from .graph import Graph
from .passes.keys import array_key, body_key, static_key
from .recorder import record

_CURE = "Pass what changes as an argument, or keep it as state= of the trainer"


def record_pure(
    program: Callable[..., Any],
    types: Sequence[TensorType],
    dtype: DType,
    seed: int,
    input_names: Sequence[str] | None = None,
    mesh: Mesh = ALONE,
) -> tuple[Graph, Guard]:
    """Return the graph of a base program, and the guard under which a replay equals a run.

    Raises ProgramError where replay would be wrong: for a program that draws from a random generator of Python or
    NumPy, changes what it reads, or differs between two recordings; and for captured arrays too large to compare in
    every call.
    """
    with observed() as seen:
        graph = record(program, types, dtype, seed, input_names, mesh)
    if not seen.functions:  # only functions of the framework itself
        return graph, Guard([])
    read = Capture(program.base if isinstance(program, BaseProgram) else program, seen)
    guard = Guard(read.slots)
    before = {name: state_of(generator) for name, generator in read.generators.items()}
    again = record(program, types, dtype, seed, input_names, mesh)
    for name, generator in read.generators.items():
        if state_of(generator) != before[name]:
            raise ProgramError(
                f"the program draws random numbers from {name}; a compiled program would give those of its recording "
                "for ever. Draw with ops (ops.rand_uniform, ops.rand_normal, ops.bernoulli_mask), which are random in "
                "every step, or pass the numbers as an argument"
            )
    if body_key(graph.body) != body_key(again.body):
        _refuse_difference(graph.body, again.body, seen.asked)
    changed = guard.changed()
    if changed:
        what, where = changed[0]
        raise ProgramError(
            f"the program changes {what}{at_line(where)}, which it reads; a compiled program would change it only when "
            f"it is recorded. {_CURE}"
        )
    for what, where in seen.asked.items():
        warnings.warn(
            ProgramWarning(
                f"the program calls {what}{at_line(where)}; a compiled program keeps what the answer was when it was "
                f"recorded. {_CURE}"
            ),
            stacklevel=2,
        )
    return graph, guard


def _refuse_difference(one: Body, two: Body, asked: dict[str, SourceLine | None]) -> NoReturn:
    """Raise an error that shows the first difference between two recordings."""
    asks = ", ".join(f"{what}{at_line(where)}" for what, where in asked.items())
    begin = "the program does not do the same twice, so no recording of it can be replayed: "
    constants = {c.slot: c.value for c in one.constants}, {c.slot: c.value for c in two.constants}
    for a, b in zip(one.equations, two.equations):
        place = f"{a.primitive}{at_line(one.lines.get(a.ordinal))}"
        if a.primitive is not b.primitive:
            difference = f"{place} was {b.primitive} the second time"
        elif static_key(a.static) != static_key(b.static):
            name = next(n for n in a.static if static_key({n: a.static[n]}) != static_key({n: b.static.get(n)}))
            difference = f"{name} of {place} is {a.static[name]}, and was {b.static.get(name)} the second time"
        else:
            pairs = [(constants[0].get(i), constants[1].get(j)) for i, j in zip(a.inputs, b.inputs)]
            found = next((p for p in pairs if _differ(*p)), None)
            if found is None:
                continue
            difference = f"a constant of {place} is {_shown(found[0])}, and was {_shown(found[1])} the second time"
        raise ProgramError(f"{begin}{difference}. {f'It calls {asks}. ' if asks else ''}{_CURE}")
    raise ProgramError(f"{begin}{len(one.equations)} ops, and {len(two.equations)} the second time. {_CURE}")


def _differ(a: Any, b: Any) -> bool:
    return (a is None) != (b is None) or (a is not None and array_key(a) != array_key(b))


def _shown(value: Any) -> str:
    array = np.asarray(value)
    return str(array.item()) if array.ndim == 0 else f"an array of shape {array.shape}"
