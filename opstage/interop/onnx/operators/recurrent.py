"""Recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....ops.errors import UnsupportedError
from ....ops.recurrent import gru, lstm, rnn
from ...values import Value
from ..call import NodeCall, rule


def _functions(call: NodeCall[Any], direction: int, defaults: list[str]) -> list[Callable[[Any, Any], Any]]:
    """Return the activations of one direction."""
    names = call.attribute("activations") or defaults * 2
    names = names[direction * len(defaults) :][: len(defaults)]
    alphas, betas = call.attribute("activation_alpha", []), call.attribute("activation_beta", [])
    known: dict[str, Callable[[Any, Any], Any]] = {
        "sigmoid": lambda ops, x: ops.sigmoid(x),
        "tanh": lambda ops, x: ops.tanh(x),
        "relu": lambda ops, x: ops.relu(x),
        "softplus": lambda ops, x: ops.softplus(x),
        "softsign": lambda ops, x: ops.softsign(x),
    }
    if alphas or betas:
        raise UnsupportedError("activations with numbers of their own are not known")
    for name in names:
        if name.lower() not in known:
            raise UnsupportedError(f"its activation {name} is not known")
    clip = call.attribute("clip")

    def limited(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        if clip is None:
            return function
        return lambda ops, x: function(ops, ops.clamp(x, lo=-clip, hi=clip))

    return [limited(known[name.lower()]) for name in names]


def _row(ops: Any, x: Any, i: int) -> Any:
    return ops.squeeze(ops.slice(x, axis=0, start=i, length=1), axis=0)


def _run(
    call: NodeCall[Any], layer: Callable[..., tuple[Any, Any]], gates: int, settings: Callable[[int], dict[str, Any]]
) -> tuple[Value, ...]:
    """Run a layer in each direction; return all outputs and the last states."""
    ops, x = call.ops, call.x()
    batch_first = bool(call.attribute("layout", 0))
    x = ops.permute(x, axes=(1, 0, 2)) if batch_first else x
    width = gates * call.shape(2)[2]
    direction = call.attribute("direction", "forward")
    directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    lengths = ops.cast(call.x(4), dtype="int64") if call.has(4) else None

    def part(i: int, direction: int) -> Any:
        return _row(ops, call.x(i), direction)

    def state(i: int, direction: int) -> Any:
        if not call.has(i):
            return None
        given = call.x(i)
        return _row(ops, ops.permute(given, axes=(1, 0, 2)) if batch_first else given, direction)

    ys, lasts = [], []
    for at, backwards in enumerate(directions):
        params = {"input": part(1, at), "recurrent": part(2, at)}
        if call.has(3):
            halves = ops.split(part(3, at), sizes=(width, width), axis=0)
            params |= dict(zip(("bias", "recurrent_bias"), halves))
        if layer is lstm and call.has(7):
            params["peephole"] = part(7, at)
        first = state(5, at)
        if layer is lstm and (call.has(5) or call.has(6)):
            shape = (x.shape[1], call.shape(2)[2])
            pair = [first, state(6, at)]
            first = tuple(ops.full(shape=shape, value=0.0) if each is None else each for each in pair)
        y, last = layer(ops, x, params, state=first, lengths=lengths, reverse=backwards, **settings(at))
        ys.append(y)
        lasts.append(last if isinstance(last, tuple) else (last,))
    y = ops.stack(ys, axis=1)  # (time, directions, batch, hidden)
    ends = [ops.stack([last[i] for last in lasts], axis=0) for i in range(len(lasts[0]))]
    if batch_first:
        y = ops.permute(y, axes=(2, 0, 1, 3))
        ends = [ops.permute(end, axes=(1, 0, 2)) for end in ends]
    return tuple(call.give(each) for each in (y, *ends))


@rule("RNN")
def _rnn(call: NodeCall[Any]) -> tuple[Value, ...]:
    return _run(call, rnn, 1, lambda at: {"activation": _functions(call, at, ["Tanh"])[0]})


@rule("GRU")
def _gru(call: NodeCall[Any]) -> tuple[Value, ...]:
    after = bool(call.attribute("linear_before_reset", 0))
    defaults = ["Sigmoid", "Tanh"]
    settings = {"gates": "zrn", "reset_after": after}
    return _run(call, gru, 3, lambda at: {**settings, "activations": _functions(call, at, defaults)})


@rule("LSTM")
def _lstm(call: NodeCall[Any]) -> tuple[Value, ...]:
    if call.attribute("input_forget", 0):
        raise UnsupportedError("input_forget is not known")
    if call.attribute("clip") is not None:
        raise UnsupportedError("clip is not known for an LSTM: runtimes differ in what of its state they clip")
    defaults = ["Sigmoid", "Tanh", "Tanh"]
    return _run(call, lstm, 4, lambda at: {"gates": "iofg", "activations": _functions(call, at, defaults)})
