"""vjp, jvp and gradients of programs over any interpreter, by nesting a tape or forward mode on it.

`opstage.transform` exports these functions for use inside programs; `opstage.vjp` etc. are the same for use outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import compress, islice
from typing import Any

from ..ops.dispatch import Quietly
from ..ops.errors import ProgramError, ShapeError
from ..ops.trees import Structure, describe_kind, flatten, if_list, unflatten
from ..ops.types import dtype_name, show_shape
from .forward_mode import ForwardMode
from .interpreter import Interpreter, run_closed
from .tape import Node, Tape

_LEAKED = (
    "a ref of a derivative was used after the derivative was taken; return it from the differentiated function instead"
)


def run_on_tape(
    ops: Interpreter[Any], f: Callable[..., Any], trees: tuple[Any, ...], wanted: tuple[bool, ...]
) -> tuple[Tape[Any], list[list[Node[Any]]], list[Node[Any]], Any]:
    """Run f on a tape over `ops`: the tape, the nodes of each argument, the output nodes and their structure.

    Arguments are pytrees of refs of `ops`, or of interpreters that it wraps; the `wanted` ones become leaves.
    """
    return _run_on_tape(ops, f, *flatten(trees), wanted)


def _run_on_tape(
    ops: Interpreter[Any], f: Callable[..., Any], refs: list[Any], structure: Structure, wanted: tuple[bool, ...]
) -> tuple[Tape[Any], list[list[Node[Any]]], list[Node[Any]], Any]:
    counts = [child.num_leaves for child in structure.children()]
    flags = [want for want, count in zip(wanted, counts) for _ in range(count)]

    def on_refs(tape: Any, *nodes: Any) -> Any:
        return f(tape, *unflatten(structure, nodes))

    tape, nodes, outputs, result = run_row_on_tape(ops, on_refs, refs, flags)
    each = iter(nodes)
    return tape, [list(islice(each, count)) for count in counts], outputs, result


def run_row_on_tape(
    ops: Interpreter[Any], f: Callable[..., Any], refs: Sequence[Any], wanted: Sequence[bool]
) -> tuple[Tape[Any], list[Node[Any]], list[Node[Any]], Structure]:
    """Return `run_on_tape` for f on a flat list of refs: the tape, the node of each, the output nodes and their
    structure."""
    tape = Tape(ops)
    if not any(wanted):  # it records nothing, so the interpreters above it are not differentiated
        tape.differentiates = ops.differentiates
    nodes = [tape.leaf(ops.adopt(ref)) if want else tape.wrap(ops.adopt(ref)) for ref, want in zip(refs, wanted)]
    outputs, structure = run_closed(tape, f, *nodes, leaked=_LEAKED)
    return tape, nodes, outputs, structure


def vjp(ops: Interpreter[Any], f: Callable[..., Any], *trees: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return the value of `f(ops', *trees)` and its pullback.

    `pullback(cotangent)`, with a cotangent shaped like the value, returns a tuple aligned with the arguments, shaped
    like each, None for integers. It can be called any number of times.
    """
    tape, nodes, outputs, structure = run_on_tape(ops, f, trees, (True,) * len(trees))
    flat = [node for refs in nodes for node in refs]

    def pullback(cotangent: Any) -> tuple[Any, ...]:
        cotangents = aligned("cotangent", structure, cotangent, outputs)
        pulled = iter(tape.pull(outputs, cotangents, flat))
        return tuple(unflatten(flatten(tree)[1], [next(pulled) for _ in refs]) for tree, refs in zip(trees, nodes))

    return unflatten(structure, [node.value for node in outputs]), pullback


def jvp(
    ops: Interpreter[Any], f: Callable[..., Any], trees: tuple[Any, ...], tangents: tuple[Any, ...]
) -> tuple[Any, Any]:
    """Return value and tangent of `f(ops', *trees)`; a tangent is shaped like its argument, None where it is zero."""
    forward = ForwardMode(ops)
    arguments = []
    trees = tuple([_adopted(ops, tree) for tree in trees])
    for tree, moves in zip(trees, tangents_of_leaves(trees, tangents)):
        leaves, structure = flatten(tree)
        arguments.append(unflatten(structure, [forward.dual(x, t) for x, t in zip(leaves, moves)]))
    duals, structure = run_closed(forward, f, *arguments, leaked=_LEAKED)
    with Quietly(ops.cursor):
        moved = [
            d.tangent
            if d.tangent is not None
            else (ops.full(shape=d.shape, value=0.0, dtype=d.dtype) if d.dtype.kind in "fO" else None)
            for d in duals
        ]
    return unflatten(structure, [d.value for d in duals]), unflatten(structure, moved)


def value_and_grad(
    ops: Interpreter[Any],
    f: Callable[..., Any],
    *trees: Any,
    wrt: tuple[int, ...] = (0,),
    has_aux: bool = False,
    keep: bool = False,
) -> tuple[Any, tuple[Any, ...]]:
    """Return the value of a scalar program and its gradients for the arguments `wrt`; with `has_aux` f returns (scalar,
    aux)."""
    refs, arguments = flatten(trees)
    tape, nodes, outputs, structure = _run_on_tape(
        ops, f, refs, arguments, tuple([i in wrt for i in range(len(trees))])
    )
    if not outputs or (len(outputs) != 1 and not has_aux):
        raise ProgramError(
            f"a program to take the gradient of must return one scalar; it returned {len(outputs)} tensors"
        )
    loss = outputs[0]
    if len(loss.shape) != 0:
        raise ShapeError(
            f"a program to take the gradient of must return a scalar but returned {show_shape(loss.shape)}; "
            "reduce it with ops.sum or ops.reduce_mean",
            op="grad",
        )
    if loss.dtype.kind not in "fO":
        raise ProgramError(f"a program to take the gradient of must return a float, not {dtype_name(loss.dtype)}")
    flat = [node for i in wrt for node in nodes[i]]
    value = unflatten(structure, [node.value for node in outputs])
    del outputs
    pulled = iter(_pull(tape, loss, flat, keep=keep))
    of_each = arguments.children()
    grads = tuple([unflatten(of_each[i], [next(pulled) for _ in nodes[i]]) for i in wrt])
    return value, grads


def row_gradients(
    ops: Interpreter[Any], f: Callable[..., Any], refs: Sequence[Any], wanted: Sequence[bool]
) -> tuple[list[Any], Structure, list[Any]]:
    """Return `value_and_grad` for f on a flat list of refs: the leaves of its value, their structure, the `wanted`
    gradients.

    The first leaf is the one that is differentiated; f must make it a float scalar.
    """
    tape, nodes, outputs, structure = run_row_on_tape(ops, f, refs, wanted)
    values, loss = [node.value for node in outputs], outputs[0]
    del outputs
    return values, structure, _pull(tape, loss, list(compress(nodes, wanted)), keep=False)


def _pull(tape: Tape[Any], loss: Node[Any], wrt: Sequence[Node[Any]], *, keep: bool) -> list[Any]:
    """Return the gradients of a scalar; see `Tape.pull`."""
    with Quietly(tape.inner.cursor):
        one = tape.inner.full(shape=(), value=1.0, dtype=loss.dtype)
    return tape.pull([loss], [one], wrt, keep=keep)


def _adopted(ops: Interpreter[Any], tree: Any) -> Any:
    leaves, structure = flatten(tree)
    return unflatten(structure, [ops.adopt(leaf) for leaf in leaves])


def tangents_of_leaves(trees: tuple[Any, ...], tangents: tuple[Any, ...]) -> list[list[Any]]:
    """Return the tangents of the leaves of each tree, None for all leaves of one without. Raises ShapeError where they
    do not fit."""
    if len(trees) != len(tangents):
        raise ShapeError(f"expected {len(trees)} tangents, one for each argument, got {len(tangents)}", op="jvp")
    found = []
    for tree, tangent in zip(trees, tangents):
        leaves, structure = flatten(tree)
        found.append([None] * len(leaves) if tangent is None else aligned("tangent", structure, tangent, leaves))
    return found


def aligned(kind: str, structure: Structure, tree: Any, of: list[Any]) -> list[Any]:
    """Return the leaves of a cotangent or tangent, each None or of the type of its tensor in `of`."""
    op = "vjp" if kind == "cotangent" else "jvp"
    try:
        given: list[Any] = structure.flatten_up_to(tree)
    except ValueError as error:
        raise ShapeError(f"the {kind} is not built like what it belongs to: {error}", op=op) from None
    for g, x in zip(given, of):
        if g is not None and not hasattr(g, "shape"):
            why = f"the {kind} has {describe_kind(g)} where {show_shape(x.shape)} is expected{if_list(g)}"
            raise ShapeError(why, op=op)
        if g is not None and x.dtype.kind in "fO" and (g.shape != x.shape or g.dtype != x.dtype):
            raise ShapeError(
                f"a {kind} is {show_shape(g.shape)} {dtype_name(g.dtype)} but its tensor is "
                f"{show_shape(x.shape)} {dtype_name(x.dtype)}",
                op=op,
            )
    return given
