"""Recurrent layers, as scans."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ops.errors import UnsupportedError
from ..call import NodeCall, rule
from ..values import Value, stretched

Cell = Callable[..., tuple[Any, Any]]


def _functions(call: NodeCall[Any], direction: int, defaults: list[str]) -> list[Callable[[Any, Any], Any]]:
    """The activations of one direction."""
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


class _Recurrence:
    """The inputs of a recurrent layer, time first, and its directions."""

    def __init__(self, call: NodeCall[Any], gates: int):
        self.call, self.ops, ops = call, call.ops, call.ops
        x = call.x()
        self.batch_first = bool(call.attribute("layout", 0))
        self.x = ops.permute(x, axes=(1, 0, 2)) if self.batch_first else x
        self.hidden = call.shape(2)[2]
        self.gates = gates
        direction = call.attribute("direction", "forward")
        self.reversed = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self.time, self.batch = self.x.shape[:2]
        self.lengths = ops.cast(call.x(4), dtype="int64") if call.has(4) else None

    def state(self, i: int, direction: int) -> Any:
        """The initial state, input i, or zeros."""
        if not self.call.has(i):
            return self.ops.full(shape=(self.batch, self.hidden), value=0.0)
        x = self.call.x(i)
        return _row(self.ops, self.ops.permute(x, axes=(1, 0, 2)) if self.batch_first else x, direction)

    def weights(self, direction: int) -> tuple[Any, Any, Any, Any]:
        """W, R and both biases of a direction."""
        ops, call = self.ops, self.call
        width = self.gates * self.hidden
        if call.has(3):
            both = ops.split(_row(ops, call.x(3), direction), sizes=(width, width), axis=0)
        else:
            both = (ops.full(shape=(width,), value=0.0),) * 2
        return _row(ops, call.x(1), direction), _row(ops, call.x(2), direction), *both

    def run(self, cells: list[Cell], first: list[tuple[Any, ...]]) -> tuple[Value, ...]:
        """Each direction's cell, (ops, state, x) -> (state, y), along time: all y, and the last states."""
        ops, ys, lasts = self.ops, [], []
        for backwards, cell, state in zip(self.reversed, cells, first):
            steps = ops.iota(shape=(self.time,))

            def body(inner: Any, carry: Any, at: Any, cell: Cell = cell) -> tuple[Any, Any]:
                x, step = at
                moved, y = cell(inner, carry, x)
                if self.lengths is None:
                    return moved, y
                # behind its end a sequence keeps its state, and its outputs are zeros
                there = inner.less(inner.broadcast_to(step, shape=self.lengths.shape), self.lengths)
                there = inner.broadcast_to(inner.unsqueeze(there, axis=1), shape=y.shape)
                kept = tuple(inner.select(there, new, old) for new, old in zip(moved, carry))
                return kept, inner.select(there, y, inner.full(shape=y.shape, value=0.0))

            last, y = ops.scan(body, state, (self.x, steps), reverse=backwards)
            ys.append(y)
            lasts.append(last)
        y = ops.stack(ys, axis=1)  # (time, directions, batch, hidden)
        ends = [ops.stack([last[i] for last in lasts], axis=0) for i in range(len(lasts[0]))]
        if self.batch_first:
            y = ops.permute(y, axes=(2, 0, 1, 3))
            ends = [ops.permute(end, axes=(1, 0, 2)) for end in ends]
        return tuple(self.call.give(each) for each in (y, *ends))


@rule("RNN")
def _rnn(call: NodeCall[Any]) -> tuple[Value, ...]:
    layer = _Recurrence(call, 1)
    cells: list[Cell] = []
    for i in range(len(layer.reversed)):
        w, r, bw, br = layer.weights(i)
        (f,) = _functions(call, i, ["Tanh"])
        bias = call.ops.add(bw, br)

        def cell(ops: Any, state: Any, x: Any, w: Any = w, r: Any = r, bias: Any = bias, f: Any = f) -> tuple[Any, Any]:
            h = f(ops, ops.add(ops.linear(w, bias, x), ops.linear(r, None, state[0])))
            return (h,), h

        cells.append(cell)
    return layer.run(cells, [(layer.state(5, i),) for i in range(len(cells))])


@rule("GRU")
def _gru(call: NodeCall[Any]) -> tuple[Value, ...]:
    layer = _Recurrence(call, 3)
    hidden, before = layer.hidden, bool(call.attribute("linear_before_reset", 0))
    cells: list[Cell] = []
    for i in range(len(layer.reversed)):
        w, r, bw, br = layer.weights(i)
        f, g = _functions(call, i, ["Sigmoid", "Tanh"])
        gates, new = call.ops.split(r, sizes=(2 * hidden, hidden), axis=0)
        gate_bias, new_bias = call.ops.split(br, sizes=(2 * hidden, hidden), axis=0)

        def cell(
            ops: Any,
            state: Any,
            x: Any,
            w: Any = w,
            bw: Any = bw,
            parts: Any = (gates, new, gate_bias, new_bias),
            f: Any = f,
            g: Any = g,
        ) -> tuple[Any, Any]:
            gates, new, gate_bias, new_bias = parts
            (h,) = state
            zr_x, n_x = ops.split(ops.linear(w, bw, x), sizes=(2 * hidden, hidden), axis=1)
            zr = f(ops, ops.add(zr_x, ops.linear(gates, gate_bias, h)))
            z, reset = ops.split(zr, sizes=(hidden, hidden), axis=1)
            inner = ops.linear(new, new_bias, h if before else ops.mul(reset, h))
            n = g(ops, ops.add(n_x, ops.mul(reset, inner) if before else inner))
            h = ops.add(n, ops.mul(z, ops.sub(h, n)))
            return (h,), h

        cells.append(cell)
    return layer.run(cells, [(layer.state(5, i),) for i in range(len(cells))])


@rule("LSTM")
def _lstm(call: NodeCall[Any]) -> tuple[Value, ...]:
    layer = _Recurrence(call, 4)
    hidden = layer.hidden
    if call.attribute("input_forget", 0):
        raise UnsupportedError("input_forget is not known")
    if call.attribute("clip") is not None:
        raise UnsupportedError("clip is not known for an LSTM: runtimes differ in what of its state they clip")
    cells: list[Cell] = []
    for i in range(len(layer.reversed)):
        w, r, bw, br = layer.weights(i)
        f, g, h_ = _functions(call, i, ["Sigmoid", "Tanh", "Tanh"])
        bias = call.ops.add(bw, br)
        peep = call.ops.split(_row(call.ops, call.x(7), i), sizes=(hidden,) * 3, axis=0) if call.has(7) else None

        def cell(
            ops: Any,
            state: Any,
            x: Any,
            w: Any = w,
            r: Any = r,
            bias: Any = bias,
            peep: Any = peep,
            act: Any = (f, g, h_),
        ) -> tuple[Any, Any]:
            f, g, out = act
            h, c = state
            every = ops.add(ops.linear(w, bias, x), ops.linear(r, None, h))
            i, o, forget, new = ops.split(every, sizes=(hidden,) * 4, axis=1)

            def watched(gate: Any, which: int, c: Any) -> Any:
                return gate if peep is None else ops.add(gate, ops.mul(stretched(ops, peep[which], c.shape), c))

            moved = ops.add(ops.mul(f(ops, watched(forget, 2, c)), c), ops.mul(f(ops, watched(i, 0, c)), g(ops, new)))
            h = ops.mul(f(ops, watched(o, 1, moved)), out(ops, moved))
            return (h, moved), h

        cells.append(cell)
    return layer.run(cells, [(layer.state(5, i), layer.state(6, i)) for i in range(len(cells))])
