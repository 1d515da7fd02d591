"""Recurrent layers as scans: each call runs one layer in one direction, time first, with optional sequence lengths.

Parameters are a mapping: `input` (G·H, I) and `recurrent` (G·H, H), with the rows of G gates in order, and optional
biases `bias` (G·H,) and `recurrent_bias` (G·H,). The input projection of all steps is one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .dims import require_divides
from .primitive import R
from .rule_helpers import dtype_error, equal_sizes, error, placed, zeros
from .types import show_shape

if TYPE_CHECKING:
    from .protocol import Ops


Params = Mapping[str, Any]
Activation = Callable[[Any, Any], Any]
"""(ops, x) -> y."""
Cell = Callable[[Any, tuple[Any, ...], Any], tuple[Any, ...]]
"""(ops, state, the input projection of the gates) -> the next state, whose first entry is the output."""

_SIGMOID: Activation = lambda ops, x: ops.sigmoid(x)  # noqa: E731
_TANH: Activation = lambda ops, x: ops.tanh(x)  # noqa: E731


def rnn(
    ops: Ops[R],
    x: R,
    params: Params,
    /,
    *,
    state: R | None = None,
    lengths: R | None = None,
    reverse: bool = False,
    activation: Activation = _TANH,
) -> tuple[R, R]:
    """Run h ← tanh(W·x + U·h + b) over x (T, B, I): return all states (T, B, H), and the last state (B, H).

    state        the initial state (B, H); zeros for None
    lengths      of the sequences (B,), integers from 0 to T: after its end a sequence keeps its state, its outputs are
                 0 and its inputs are ignored. Other lengths raise when it runs
    reverse      from the last entry to the first, each sequence from its own end; outputs stay in the order of x
    activation   a function (ops, x) -> y in place of tanh

    PyTorch: torch.nn.RNN. Source: Elman 1990.

    Raises:
        DtypeError: weight not a float tensor; dtypes differ.
        ShapeError: bias, input, recurrent, x of another shape.
    """
    layer = _Recurrence(ops, "rnn", x, params, 1)
    recurrent = params["recurrent"]

    def cell(ops: Any, state: tuple[Any, ...], driven: Any) -> tuple[Any, ...]:
        return (activation(ops, ops.add(driven, ops.linear(recurrent, None, state[0]))),)

    outputs, (last,) = layer.run(cell, layer.bias(), (state,), lengths, reverse)
    return outputs, last


def gru(
    ops: Ops[R],
    x: R,
    params: Params,
    /,
    *,
    state: R | None = None,
    lengths: R | None = None,
    reverse: bool = False,
    gates: str = "rzn",
    reset_after: bool = True,
    activations: Sequence[Activation] = (_SIGMOID, _TANH),
) -> tuple[R, R]:
    """Run gated recurrent units over x (T, B, I): return all states (T, B, H), and the last state (B, H).

    r, z = σ(W·x + b + U·h + c) by rows, n = tanh(Wₙ·x + bₙ + r·(Uₙ·h + cₙ)), h ← (1 - z)·n + z·h, with b `bias` and c
    `recurrent_bias`. `state`, `lengths` and `reverse` are as in `rnn`.

    gates         the order of the rows: "rzn" (PyTorch) or "zrn" (Keras, ONNX)
    reset_after   whether r is applied after the product with U, as in PyTorch; else n = tanh(… + Uₙ·(r·h) + cₙ)
    activations   functions (ops, x) -> y in place of σ and tanh

    PyTorch: torch.nn.GRU. Source: Cho et al. 2014.

    Raises:
        DtypeError: weight not a float tensor; dtypes differ.
        ShapeError: input, recurrent, x of another shape; an invalid argument; operands that do not fit each other.
    """
    if gates not in ("rzn", "zrn"):
        raise error(ops, "gru", f'gates must be "rzn" or "zrn" but is {gates!r}')
    f, g = activations
    layer = _Recurrence(ops, "gru", x, params, 3)
    size = layer.size
    recurrent, added = params["recurrent"], params.get("recurrent_bias")
    of_gates, of_new = ops.split(recurrent, sizes=(2 * size, size), axis=0)
    gate_bias, new_bias = (None, None) if added is None else ops.split(added, sizes=(2 * size, size), axis=0)

    def cell(ops: Any, state: tuple[Any, ...], driven: Any) -> tuple[Any, ...]:
        (h,) = state
        for_gates, for_new = ops.split(driven, sizes=(2 * size, size), axis=1)
        if reset_after:
            by_gates, by_new = ops.split(ops.linear(recurrent, added, h), sizes=(2 * size, size), axis=1)
        else:
            by_gates = ops.linear(of_gates, gate_bias, h)
        both = ops.split(f(ops, ops.add(for_gates, by_gates)), sizes=(size, size), axis=1)
        reset, update = both if gates == "rzn" else reversed(both)
        by_new = ops.mul(reset, by_new) if reset_after else ops.linear(of_new, new_bias, ops.mul(reset, h))
        new = g(ops, ops.add(for_new, by_new))
        return (ops.add(new, ops.mul(update, ops.sub(h, new))),)

    outputs, (last,) = layer.run(cell, params.get("bias"), (state,), lengths, reverse)
    return outputs, last


def lstm(
    ops: Ops[R],
    x: R,
    params: Params,
    /,
    *,
    state: tuple[R, R] | None = None,
    lengths: R | None = None,
    reverse: bool = False,
    gates: str = "ifgo",
    activations: Sequence[Activation] = (_SIGMOID, _TANH, _TANH),
) -> tuple[R, tuple[R, R]]:
    """Run a long short-term memory over x (T, B, I): return all h (T, B, H), and the last (h, c), each (B, H).

    i, f, o = σ(W·x + U·h + b), g = tanh(…) by rows, c ← f·c + i·g, h ← o·tanh(c). `state` (a pair), `lengths`
    and `reverse` are as in `rnn`. With a parameter `peephole` p (3·H,), p·c is added to i, f and o, in the
    order of their rows, using the new c for o (Gers, Schmidhuber 2000).

    gates         the order of the rows: "ifgo" (PyTorch, Keras), "iofg" (ONNX) or any other order
    activations   functions (ops, x) -> y in place of σ, of tanh for g, and of tanh of c

    PyTorch: torch.nn.LSTM. Source: Hochreiter, Schmidhuber 1997; forget gates by Gers et al. 2000.

    Raises:
        DtypeError: weight not a float tensor; dtypes differ.
        ShapeError: input, recurrent, x of another shape; an invalid argument; operands that do not fit each other.
    """
    if not isinstance(gates, str) or sorted(gates) != sorted("ifgo"):
        raise error(ops, "lstm", f"gates must be the letters i, f, g and o in some order but is {gates!r}")
    f, g, out = activations
    layer = _Recurrence(ops, "lstm", x, params, 4, "peephole")
    size, recurrent = layer.size, params["recurrent"]
    watching = dict[str, Any]()
    if "peephole" in params:
        layer.require("peephole", (3 * size,))
        rows = ops.split(params["peephole"], sizes=(size,) * 3, axis=0)
        watching = dict(zip(gates.replace("g", ""), [ops.reshape(each, shape=(1, size)) for each in rows]))

    def cell(ops: Any, state: tuple[Any, ...], driven: Any) -> tuple[Any, ...]:
        h, memory = state
        every = ops.split(ops.add(driven, ops.linear(recurrent, None, h)), sizes=(size,) * 4, axis=1)
        found = dict(zip(gates, every))

        def gate(name: str, memory: Any) -> Any:
            row = watching.get(name)
            if row is None:
                return f(ops, found[name])
            return f(ops, ops.add(found[name], ops.mul(ops.broadcast_to(row, shape=memory.shape), memory)))

        kept, taken = ops.mul(gate("f", memory), memory), ops.mul(gate("i", memory), g(ops, found["g"]))
        memory = ops.add(kept, taken)
        return ops.mul(gate("o", memory), out(ops, memory)), memory

    outputs, (h, c) = layer.run(cell, layer.bias(), (None, None) if state is None else state, lengths, reverse)
    return outputs, (h, c)


def bidirectional(
    ops: Ops[R],
    layer: Callable[..., tuple[R, Any]],
    x: R,
    forward: Params,
    backward: Params,
    /,
    *,
    state: tuple[Any, Any] = (None, None),
    lengths: R | None = None,
    **settings: Any,
) -> tuple[R, tuple[Any, Any]]:
    """Run `rnn`, `gru` or `lstm` in both directions: return outputs (T, B, 2·H), forward first, and both last states.

    `forward` and `backward` are parameters of the layer, `state` the pair of initial states; `settings` are passed to
    the layer.

    Raises:
        DtypeError: weight not a float tensor; dtypes differ.
        ShapeError: bias, input, recurrent, x of another shape.
    """
    y, last = layer(ops, x, forward, state=state[0], lengths=lengths, **settings)
    z, first = layer(ops, x, backward, state=state[1], lengths=lengths, reverse=True, **settings)
    return ops.concat([y, z], axis=2), (last, first)


class _Recurrence:
    """The checked parameters of a layer, and its loop."""

    def __init__(self, ops: Any, op: str, x: Any, params: Params, gates: int, *more: str):
        self.ops, self.op, self.x, self.params = ops, op, x, params
        known = ("input", "recurrent", "bias", "recurrent_bias", *more)
        missing = [name for name in known[:2] if name not in params]
        unknown = [name for name in params if name not in known]
        if missing or unknown:
            what = f"lack {missing[0]!r}" if missing else f"have {unknown[0]!r}, which it does not know"
            raise error(ops, op, f"the parameters {what}; they are {', '.join(known)}, all but the first two optional")
        if len(x.shape) != 3:
            raise error(ops, op, f"x must be (time, batch, inputs) but is {show_shape(x.shape)}")
        weight = params["input"].shape
        if len(weight) != 2:
            raise error(ops, op, f"input must be ({gates}·H, inputs) but is {show_shape(weight)}")
        message = f"input is {show_shape(weight)}: its rows must be those of {gates} gates"
        placed(ops, op, lambda: require_divides(gates, weight[0], message))
        self.size = weight[0] // gates
        self.require("input", (weight[0], x.shape[2]))
        self.require("recurrent", (weight[0], self.size))
        for name in ("bias", "recurrent_bias"):
            if params.get(name) is not None:
                self.require(name, (weight[0],))

    def require(self, name: str, shape: tuple[Any, ...]) -> None:
        """Raise ShapeError if a parameter has another shape."""
        _require(self.ops, self.op, name, self.params[name], shape)

    def bias(self) -> Any:
        """Return the sum of both biases; None without any."""
        given = [self.params[name] for name in ("bias", "recurrent_bias") if self.params.get(name) is not None]
        return self.ops.add(*given) if len(given) == 2 else given[0] if given else None

    def run(
        self, cell: Cell, bias: Any, first: tuple[Any, ...], lengths: Any, reverse: bool
    ) -> tuple[Any, tuple[Any, ...]]:
        """Return the outputs (T, B, H), and the last state."""
        ops, x = self.ops, self.x
        time, batch = x.shape[:2]
        shape = (batch, self.size)
        for each in first:
            if each is not None:
                _require(ops, self.op, "state", each, shape)
        carry = tuple(zeros(ops, x, shape) if each is None else each for each in first)
        if lengths is None:

            def step(ops: Any, state: Any, driven: Any) -> tuple[Any, Any]:
                state = cell(ops, state, driven)
                return state, state[0]

            last, outputs = ops.scan(step, carry, ops.linear(self.params["input"], bias, x), reverse=reverse)
            return outputs, last

        there = ops.unsqueeze(within(ops, self.op, "lengths", lengths, time, batch), axis=2)
        x = ops.select(ops.broadcast_to(there, shape=x.shape), x, zeros(ops, x))

        def masked(ops: Any, state: Any, entry: Any) -> tuple[Any, Any]:
            driven, here = entry
            here = ops.broadcast_to(here, shape=state[0].shape)
            moved = cell(ops, state, driven)
            kept = tuple(ops.select(here, new, old) for new, old in zip(moved, state))
            return kept, ops.select(here, moved[0], zeros(ops, moved[0]))

        last, outputs = ops.scan(masked, carry, (ops.linear(self.params["input"], bias, x), there), reverse=reverse)
        return outputs, last


def _require(ops: Any, op: str, name: str, x: Any, shape: tuple[Any, ...]) -> None:
    message = f"{name} must be {show_shape(shape)} but is {show_shape(x.shape)}"
    if len(x.shape) != len(shape):
        raise error(ops, op, message)
    for a, b in zip(x.shape, shape):
        equal_sizes(ops, op, a, b, lambda: message)


def within(ops: Any, op: str, name: str, lengths: Any, time: Any, batch: Any) -> Any:
    """Return the mask (time, batch) of steps within sequences of these lengths. Lengths outside 0 … `time` raise at run
    time."""
    if lengths.dtype.kind not in "iu":
        raise dtype_error(ops, op, f"{name} must be integers but is {lengths.dtype}")
    _require(ops, op, name, lengths, (batch,))
    lengths = ops.gather_vec(ops.iota(shape=(time + 1,)), lengths)  # raises for other lengths
    steps = ops.broadcast_to(ops.unsqueeze(ops.iota(shape=(time,)), axis=1), shape=(time, batch))
    return ops.less(steps, ops.broadcast_to(ops.unsqueeze(lengths, axis=0), shape=(time, batch)))
