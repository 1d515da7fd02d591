"""Loop bodies prepared to run many times: kernels are looked up and types inferred once, not per iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, final

import numpy as np

from ...compiler.codegen.decomposition import Expander, Keep
from ...compiler.codegen.runs import hoisted, in_runs
from ...ops.body import Body, Equation, ScanParameters, WhileParameters
from ...ops.errors import LocatedError
from ...ops.host_arrays import Array
from ...ops.matmul import LINEAR
from ...transforms.cond import SWITCH, branches_of, chosen
from ...transforms.scan import SCAN, run_iterations
from ...transforms.tracer import constants
from ...transforms.while_loop import WHILE, iterate

if TYPE_CHECKING:
    from .interpreter import NumpyOps


_LONG = 16
"""Iterations, from which on a loop is worth kernels of its own."""


def prepare_body(
    ops: NumpyOps, body: Body, varying: int, length: int = 0
) -> Callable[[Sequence[Array]], Callable[[Sequence[Array]], Sequence[Array]]]:
    """Implement `BaseInterpreter.prepare_body`. Loop invariants are computed once, in the layout that products
    prefer."""
    invariant, repeated = loop_parts(
        body, varying, length, lambda primitive, types, static: ops.kernel(primitive, types, static) is not None
    )
    prepared = _PreparedBody(ops, repeated)
    if invariant is None:
        return lambda captured: partial(prepared, captured)
    before = _PreparedBody(ops, invariant)
    return lambda captured: partial(prepared, (*captured, *map(_packed, before(captured, ()))))


def loop_parts(body: Body, varying: int, length: int, has_kernel: Keep) -> tuple[Body | None, Body]:
    """Return what a loop of `length` iterations runs before it, if anything, and in each of them.

    See `hoisted` for the operands of either. In a long loop each run of elementwise ops is one composite; a short loop
    is not worth the kernels. Only the length decides, so that equal programs compute equal bits.
    """
    body = written_out(body, has_kernel)
    invariant, repeated = hoisted(body, varying) or (None, body)
    return invariant, in_runs(repeated, has_kernel) if length >= _LONG else repeated


def _packed(x: Array) -> Array:
    return np.asarray(x, order="C")


def written_out(body: Body, has_kernel: Keep) -> Body:
    """Decompose the body into ops with kernels, with products separate from biases: a weight is then transposed only
    once."""
    keep: Keep = lambda primitive, types, static: primitive is not LINEAR and has_kernel(primitive, types, static)  # noqa: E731
    return Expander(keep, loops=False).written_out(body)


@final
class _PreparedBody:
    """Evaluates a body of ops with kernels, without other overhead.

    Slots are numbered in order: inputs, constants, results.
    """

    __slots__ = ("_ops", "_body", "_constants", "_steps", "_results")

    def __init__(self, ops: NumpyOps, body: Body):
        self._ops = ops
        self._body = body = body.renumbered()
        self._constants = constants(ops, body)
        self._steps = [
            (_kernel(ops, body, equation), _operands(equation.inputs), last)
            for equation, last in zip(body.equations, body.last_reads())
        ]
        self._results = _operands(body.outputs)

    def __call__(self, captured: Sequence[Array], inputs: Sequence[Array]) -> Sequence[Array]:
        values: list[Any] = [*inputs, *captured, *self._constants]
        append = values.append
        done = 0
        try:
            for kernel, operands, last in self._steps:
                out = kernel(*operands(values))
                if type(out) is np.ndarray:
                    append(out)
                elif type(out) is tuple:
                    values += [o if type(o) is np.ndarray else zero_dim(o) for o in out]
                else:
                    append(zero_dim(out))
                for slot in last:
                    values[slot] = None
                done += 1
        except LocatedError as error:  # an index or label out of range
            equation = self._body.equations[done]
            error.place(equation.primitive.name, equation.region.name)
            error.relocate(self._body.lines.get(equation.ordinal), equation.region.name)
            raise
        return self._results(values)


def _kernel(ops: NumpyOps, body: Body, e: Equation) -> Callable[..., Any]:
    """Return the kernel of an equation, as a function of its operands only."""
    if e.primitive is SCAN:
        loop = ScanParameters(**e.static)
        return partial(
            run_iterations, ops, loop, ops.prepare_body(loop.body, loop.carries + loop.entries, length=int(loop.length))
        )
    if e.primitive is WHILE:
        turns = WhileParameters(**e.static)
        varying = len(turns.body.outputs)
        return partial(
            iterate, ops, turns, ops.prepare_body(turns.test, varying), ops.prepare_body(turns.body, varying)
        )
    if e.primitive is SWITCH:
        bodies = branches_of(e.static)
        return partial(_branch, [ops.prepare_body(body, len(body.inputs))(()) for body in bodies])
    types = tuple([body.types[slot] for slot in e.inputs])
    kernel = ops.kernel(e.primitive, types, e.static)
    if kernel is None:
        return partial(_bound, ops, e)
    return partial(kernel, **e.static) if e.static else kernel


def _branch(branches: Sequence[Any], index: Array, /, *operands: Array) -> tuple[Array, ...]:
    found: Sequence[Array] = branches[chosen(int(index), len(branches))](operands)
    return tuple(found)


def _bound(ops: NumpyOps, e: Equation, /, *refs: Array) -> tuple[Array, ...]:
    """Run an op without a kernel through `bind`."""
    ops.cursor.region = e.region
    return ops.bind(e.primitive, refs, e.static)


def _operands(slots: Sequence[int]) -> Callable[[list[Any]], Sequence[Array]]:
    if len(slots) > 1:
        return itemgetter(*slots)
    first = slots[0] if slots else 0
    return itemgetter(slice(first, first + len(slots)))


def zero_dim(value: Any) -> Array:
    """Convert to an array: NumPy returns scalars for zero-dimensional results."""
    return np.asarray(value) if isinstance(value, np.generic) else np.array(value, dtype=object)
