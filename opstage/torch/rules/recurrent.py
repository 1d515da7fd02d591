"""Recurrent layers, as scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ops.derived import dropout
from ..call import AtenCall, rule

Cell = Callable[..., tuple[tuple[Any, ...], Any]]
"""(ops, state, x, weights of input and state, their biases) -> the state after it, and y."""


def _lstm_cell(ops: Any, state: Any, x: Any, w: Any, r: Any, b: Any, c: Any) -> tuple[tuple[Any, ...], Any]:
    h, memory = state
    gates = ops.add(ops.linear(w, b, x), ops.linear(r, c, h))
    take, keep, new, give = ops.split(gates, sizes=(h.shape[1],) * 4, axis=1)
    memory = ops.add(ops.mul(ops.sigmoid(keep), memory), ops.mul(ops.sigmoid(take), ops.tanh(new)))
    h = ops.mul(ops.sigmoid(give), ops.tanh(memory))
    return (h, memory), h


def _gru_cell(ops: Any, state: Any, x: Any, w: Any, r: Any, b: Any, c: Any) -> tuple[tuple[Any, ...], Any]:
    (h,) = state
    sizes = (h.shape[1],) * 3
    reset_x, update_x, new_x = ops.split(ops.linear(w, b, x), sizes=sizes, axis=1)
    reset_h, update_h, new_h = ops.split(ops.linear(r, c, h), sizes=sizes, axis=1)
    reset = ops.sigmoid(ops.add(reset_x, reset_h))
    update = ops.sigmoid(ops.add(update_x, update_h))
    new = ops.tanh(ops.add(new_x, ops.mul(reset, new_h)))
    h = ops.add(new, ops.mul(update, ops.sub(h, new)))
    return (h,), h


def _plain_cell(name: str) -> Cell:
    def cell(ops: Any, state: Any, x: Any, w: Any, r: Any, b: Any, c: Any) -> tuple[tuple[Any, ...], Any]:
        h = getattr(ops, name)(ops.add(ops.linear(w, b, x), ops.linear(r, c, state[0])))
        return (h,), h

    return cell


_CELLS: dict[str, Cell] = {"lstm": _lstm_cell, "gru": _gru_cell, "rnn_tanh": _plain_cell("tanh")}
_CELLS["rnn_relu"] = _plain_cell("relu")


@rule(*[f"{name}.input" for name in _CELLS])
def _recurrent(
    call: AtenCall[Any],
    x: Any,
    states: Any,
    params: Any,
    has_biases: bool,
    layers: int,
    p: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """All outputs of the last layer, and the last states of every layer and direction."""
    ops, cell = call.ops, _CELLS[call.name.removeprefix("aten.")]
    first = [each.ref for each in (states if isinstance(states, list) else [states])]
    directions = 2 if bidirectional else 1
    several, biases = (4 if has_biases else 2), (None, None)
    y = ops.permute(x.ref, axes=(1, 0, 2)) if batch_first else x.ref
    lasts: list[list[Any]] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            if len(params) != layers * directions * several:
                raise ValueError("projections of the state")
            w, r, *given = (each.ref for each in params[at * several : (at + 1) * several])
            b, c = given or biases

            def body(inner: Any, carry: Any, step: Any, w: Any = w, r: Any = r, b: Any = b, c: Any = c) -> Any:
                return cell(inner, carry, step, w, r, b, c)

            carry = tuple(ops.squeeze(ops.slice(each, axis=0, start=at, length=1), axis=0) for each in first)
            last, steps = ops.scan(body, carry, y, reverse=direction == 1)
            outputs.append(steps)
            lasts.append(list(last))
        y = ops.concat(outputs, axis=2) if directions > 1 else outputs[0]
        if p and layer < layers - 1 and call.around.trains(call.node):
            y = dropout(ops, y, p=p, train=True)
    y = ops.permute(y, axes=(1, 0, 2)) if batch_first else y
    ends = [ops.stack([last[i] for last in lasts], axis=0) for i in range(len(first))]
    return [call.give(each, i) for i, each in enumerate((y, *ends))]
