"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...ops.derived import dropout
from ...ops.functions.recurrent import gru, lstm, rnn
from ..call import AtenCall, rule

_LAYERS: dict[str, Callable[..., tuple[Any, Any]]] = {
    "lstm": lstm,
    "gru": gru,
    "rnn_tanh": rnn,
    "rnn_relu": partial(rnn, activation=lambda ops, x: ops.relu(x)),
}


@rule(*[f"{name}.input" for name in _LAYERS])
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
    """Return all outputs of the last layer, and the last states of every layer and direction."""
    ops, layer = call.ops, _LAYERS[call.name.removeprefix("aten.")]
    first = [each.ref for each in (states if isinstance(states, list) else [states])]
    directions = 2 if bidirectional else 1
    names = ("input", "recurrent", "bias", "recurrent_bias")[: 4 if has_biases else 2]
    if len(params) != layers * directions * len(names):
        raise ValueError("projections of the state")
    y = ops.permute(x.ref, axes=(1, 0, 2)) if batch_first else x.ref
    lasts: list[tuple[Any, ...]] = []
    for depth in range(layers):
        outputs = []
        for direction in range(directions):
            at = depth * directions + direction
            given = dict(zip(names, [each.ref for each in params[at * len(names) : (at + 1) * len(names)]]))
            state = [ops.squeeze(ops.slice(each, axis=0, start=at, length=1), axis=0) for each in first]
            steps, last = layer(
                ops, y, given, state=tuple(state) if layer is lstm else state[0], reverse=direction == 1
            )
            outputs.append(steps)
            lasts.append(last if isinstance(last, tuple) else (last,))
        y = ops.concat(outputs, axis=2) if directions > 1 else outputs[0]
        if p and depth < layers - 1 and call.around.trains(call.node):
            y = dropout(ops, y, p=p, train=True)
    y = ops.permute(y, axes=(1, 0, 2)) if batch_first else y
    ends = [ops.stack([last[i] for last in lasts], axis=0) for i in range(len(first))]
    return [call.give(each, i) for i, each in enumerate((y, *ends))]
