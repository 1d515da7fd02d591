"""Small models that a calibration trains for a few steps; together they run the kernels of most other models.

Their sizes surround those of models in use, so that the rates of other shapes can be interpolated.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
from typing_extensions import override

from ..interpreters.graph.compiled import CompiledOps
from ..interpreters.graph.cpu.cost import Work, works
from ..interpreters.graph.executor import CpuExecutor
from ..ops import derived, transform
from ..ops.activation import GELU_GRAD, SILU_GRAD
from ..ops.dispatch import Region
from ..ops.primitive import Primitive, R, Static
from ..ops.types import TensorType
from ..optim.optimizer import Optimizer
from ..training.trainer import ScalarTrainer
from ..transforms.interpreter import BaseInterpreter
from ..transforms.transparent import Transparent

Program = Callable[..., Any]


@dataclass(frozen=True)
class Probe:
    """A loss, the shapes of its parameters, and its batch: shapes, or (shape, number of classes) of integers."""

    name: str
    loss: Program
    params: Mapping[str, tuple[int, ...]]
    batch: tuple[Any, ...]

    def build(self, dtype: str) -> tuple[dict[str, Any], list[Any]]:
        """Return parameters and a batch."""
        rng = np.random.default_rng(0)
        params = {name: (0.1 * rng.standard_normal(shape)).astype(dtype) for name, shape in self.params.items()}
        batch: list[Any] = []
        for entry in self.batch:
            if entry and isinstance(entry[0], tuple):
                batch.append(rng.integers(0, entry[1], entry[0]))
            else:
                batch.append(rng.standard_normal(entry).astype(dtype))
        return params, batch


def chain(length: int, size: int = 2) -> Probe:
    """Return a probe of products of square matrices; tiny ones, which are never fused, show the overhead of a step and
    an op.
    """

    def loss(ops: Any, p: Any, x: Any) -> Any:
        for _ in range(length):
            x = ops.matmul(x, p["w"])
        return ops.sum(x)

    return Probe(f"chain of {length}, {size}", loss, {"w": (size, size)}, ((size, size),))


def loop(length: int) -> Probe:
    """Return a probe of the same products in a loop."""

    def loss(ops: Any, p: Any, x: Any) -> Any:
        def body(ops: Any, carry: Any, _: Any) -> Any:
            return ops.matmul(ops.matmul(carry, p["w"]), p["w"]), None

        last, _ = ops.scan(body, x, None, length=length)
        return ops.sum(last)

    return Probe(f"loop of {length}", loss, {"w": (2, 2)}, ((2, 2),))


def dense(batch: int, widths: tuple[int, ...]) -> Probe:
    """Return a probe of dense layers with relu and dropout."""

    def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
        last = len(widths) - 2
        for i in range(last + 1):
            x = ops.linear(p[f"w{i}"], p[f"b{i}"], ops.flatten(x, start=1))
            if i < last:
                x = ops.relu(x)
        return ops.cross_entropy(derived.dropout(ops, x, 0.1, train=True), y)

    params: dict[str, tuple[int, ...]] = {}
    for i, (inner, outer) in enumerate(itertools.pairwise(widths)):
        params[f"w{i}"], params[f"b{i}"] = (outer, inner), (outer,)
    return Probe(f"dense {batch} {widths}", loss, params, ((batch, widths[0]), ((batch,), widths[-1])))


def images(batch: int, size: int, channels: tuple[int, ...]) -> Probe:
    """Return a probe of convolutions of 3 × 3 with strides 1 and 2 and of 1 × 1, normalisation, pooling."""

    def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
        for i in range(len(channels) - 1):
            x = ops.conv(p[f"k{i}"], p[f"b{i}"], x, stride=1 + i % 2, padding=1)
            x = ops.silu(ops.group_norm(x, p[f"g{i}"], p[f"h{i}"], groups=4))
            same = ops.conv(p[f"s{i}"], None, x, padding=1)
            same, _, _ = ops.batch_norm(same, p[f"g{i}"], p[f"h{i}"])
            x = ops.relu(ops.add(x, same))
        x = ops.conv(p["one"], None, x)
        x = ops.max_pool2d(x, kernel=2)
        return ops.cross_entropy(ops.linear(p["w"], p["b"], ops.reduce_mean(x, axis=(2, 3))), y)

    params: dict[str, tuple[int, ...]] = {}
    for i, (inner, outer) in enumerate(itertools.pairwise(channels)):
        params |= {f"k{i}": (outer, inner, 3, 3), f"s{i}": (outer, outer, 3, 3)}
        params |= {f"{name}{i}": (outer,) for name in "bgh"}
    last = channels[-1]
    params |= {"one": (last, last, 1, 1), "w": (10, last), "b": (10,)}
    return Probe(f"images {batch} {size} {channels}", loss, params, ((batch, channels[0], size, size), ((batch,), 10)))


def tokens(batch: int, length: int, width: int, heads: int, vocabulary: int) -> Probe:
    """Return a probe of an embedding, a block of a transformer, and a loss of every token."""

    def loss(ops: Any, p: Any, tokens: Any, y: Any) -> Any:
        x = ops.gather_rows(p["e"], tokens)
        x = ops.add(x, ops.broadcast_to(p["place"], shape=x.shape))
        h = ops.linear(p["qkv"], p["bqkv"], ops.layer_norm(x, p["g"], p["h"]))
        thirds = [ops.slice(h, axis=2, start=i * width, length=width) for i in range(3)]
        split = (batch, length, heads, width // heads)
        q, k, v = (ops.permute(ops.reshape(third, shape=split), axes=(0, 2, 1, 3)) for third in thirds)
        a = ops.permute(ops.scaled_dot_product_attention(q, k, v, causal=True), axes=(0, 2, 1, 3))
        x = ops.add(x, ops.linear(p["out"], p["bout"], ops.reshape(a, shape=x.shape)))
        h = ops.gelu(ops.linear(p["up"], p["bup"], ops.layer_norm(x, p["g"], p["h"])))
        x = ops.add(x, derived.dropout(ops, ops.linear(p["down"], p["bdown"], h), 0.1, train=True))
        logits = ops.matmul(ops.reshape(x, shape=(batch * length, width)), ops.transpose2d(p["e"]))
        return ops.cross_entropy(logits, ops.reshape(y, shape=(batch * length,)))

    layers = {"qkv": (3 * width, width), "out": (width, width), "up": (4 * width, width), "down": (width, 4 * width)}
    params = {**layers, **{f"b{name}": (shape[0],) for name, shape in layers.items()}}
    params |= {"g": (width,), "h": (width,), "e": (vocabulary, width), "place": (length, width)}
    shape = ((batch, length), vocabulary)
    return Probe(f"tokens {batch} {length} {width}", loss, params, (shape, shape))


def pointwise(rows: int, width: int, times: int = 1) -> Probe:
    """Return a probe of elementwise ops, as in losses written by hand."""

    def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
        for _ in range(times):
            w = ops.broadcast_to(p["w"], shape=(rows, width))
            a = ops.add(ops.tanh(ops.mul(x, w)), ops.sigmoid(ops.sub(w, y)))
            b = ops.sub(ops.sin(ops.add(x, w)), ops.cos(ops.neg(w)))
            c = ops.div(ops.exp(ops.mul(a, b)), ops.add(ops.abs(ops.log(ops.exp(w))), ops.exp(x)))
            x = ops.sqrt(ops.exp(ops.scale(ops.add(b, c), c=0.5)))
        noise = ops.add(ops.rand_normal(shape=(rows, width)), ops.detach(ops.rand_uniform(shape=(rows, width))))
        both = ops.concat([ops.add(x, noise), y], axis=1)
        return ops.add(ops.mse_loss(ops.slice(both, axis=1, start=0, length=width), y), ops.reduce_mean(both))

    return Probe(f"pointwise {rows} {width}", loss, {"w": (width,)}, ((rows, width), (rows, width)))


def nested(rows: int, width: int) -> Probe:
    """Return a probe of a loss with derivatives, whose nested interpreters spend time between two kernels."""

    def loss(ops: Any, p: Any, x: Any) -> Any:
        def field(ops: Any, x: Any) -> Any:
            h = ops.tanh(ops.linear(p["w"], p["b"], x))
            return ops.linear(p["v"], p["c"], ops.tanh(ops.linear(p["u"], p["b"], h)))

        one = ops.full(shape=(rows, 1), value=1.0)
        slope = lambda ops, x: transform.jvp(ops, field, (x,), (one,))[1]  # noqa: E731
        first, second = transform.jvp(ops, slope, (x,), (one,))
        return ops.reduce_mean(ops.add(ops.mul(first, first), ops.mul(second, second)))

    params = {"w": (width, 1), "u": (width, width), "v": (1, width), "b": (width,), "c": (1,)}
    return Probe(f"nested {rows} {width}", loss, params, ((rows, 1),))


def probes() -> list[Probe]:
    """Return the probes by which kernels are measured."""
    return [
        chain(4, 20),
        chain(4, 40),
        chain(3, 120),
        pointwise(6, 10),
        dense(16, (24, 48, 12)),
        pointwise(96, 40),
        tokens(4, 24, 48, 2, 80),
        images(8, 12, (3, 8, 24)),
        pointwise(200, 300),
        dense(96, (80, 160, 320, 40)),
        images(48, 5, (20, 40)),
        dense(48, (640, 1280, 384, 96)),
        images(24, 16, (4, 24, 48)),
        tokens(10, 48, 96, 3, 160),
    ]


def small_probes(backend: str) -> list[Probe]:
    """Return probes with tiny kernels, from which the overheads of a step are measured.

    On the eager interpreter Python runs between any two kernels, so plain ops and layers show usual costs. A compiled
    step is one call, in which only the number of kernels counts.
    """
    common = [chain(6), pointwise(6, 10), dense(16, (24, 48, 12))]
    if backend == "compiled":
        return [*common, chain(60), tokens(2, 8, 16, 2, 20), images(2, 6, (2, 4, 4))]
    return [*common, pointwise(6, 10, 3), dense(6, (8,) * 9), nested(6, 8)]


LOOPS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    "div": lambda ops, x, y: ops.div(x, y),
    "inv": lambda ops, x, y: ops.inv(x),
    "sqrt": lambda ops, x, y: ops.sqrt(x),
    "exp": lambda ops, x, y: ops.exp(x),
    "log": lambda ops, x, y: ops.log(x),
    "tanh": lambda ops, x, y: ops.tanh(x),
    "sigmoid": lambda ops, x, y: ops.sigmoid(x),
    "erf": lambda ops, x, y: ops.erf(x),
    "sin": lambda ops, x, y: ops.sin(x),
    "cos": lambda ops, x, y: ops.cos(x),
    "softplus": lambda ops, x, y: ops.softplus(x),
    "gelu": lambda ops, x, y: ops.gelu(x),
    "gelu_grad": lambda ops, x, y: ops.bind(GELU_GRAD, (x, y), {"approximate": "tanh"})[0],
    "silu": lambda ops, x, y: ops.silu(x),
    "silu_grad": lambda ops, x, y: ops.bind(SILU_GRAD, (x, y), {})[0],
    "power": lambda ops, x, y: ops.power(x, y),
}
"""Ops that cost more than an addition in a generated loop, as programs of two vectors."""


# Times of steps, kernel by kernel, for calibration and for comparison with a prediction -------------------------------


class TimedOp(NamedTuple):
    """An op requested from the eager interpreter. `nbytes` is what it reads and writes, 0 if it returns views."""

    primitive: Primitive
    static: Static
    inputs: tuple[TensorType, ...]
    outputs: tuple[TensorType, ...]
    nbytes: int
    region: Region
    backward: bool


@final
class Timed(Transparent[R]):
    """An interpreter that wraps another one and records the ops, or the duration of each.

    noted     the ops of one run, if it is a list; otherwise the seconds of each op go to `seconds`
    """

    __slots__ = ("noted", "seconds")

    def __init__(self, inner: BaseInterpreter[R]):
        super().__init__(inner)
        self.noted: list[TimedOp] | None = None
        self.seconds: list[float] = []

    @property
    @override
    def fuses(self) -> bool:
        return self.inner.fuses

    @override
    def has_fused(self, primitive: Primitive, types: tuple[TensorType, ...]) -> bool:
        return self.inner.has_fused(primitive, types)

    @override
    def bind(self, primitive: Primitive, refs: tuple[R, ...], static: Static, /) -> tuple[R, ...]:
        if self.noted is None:
            start = time.perf_counter()
            outs = self.inner.bind(primitive, refs, static)
            self.seconds.append(time.perf_counter() - start)
            return outs
        outs = self.inner.bind(primitive, refs, static)
        inputs, outputs = _types(refs), _types(outs)
        nbytes: Any = sum(type_.nbytes for type_ in (*inputs, *outputs))
        if refs and all(_is_view(out, refs) for out in outs):
            nbytes = 0
        cursor = self.cursor
        self.noted.append(TimedOp(primitive, static, inputs, outputs, nbytes, cursor.region, bool(cursor.backward)))
        return outs


def _is_view(out: Any, refs: Sequence[Any]) -> bool:
    return isinstance(out, np.ndarray) and any(np.may_share_memory(out, ref) for ref in refs)


def _types(refs: Sequence[Any]) -> tuple[TensorType, ...]:
    return tuple([TensorType(ref.shape, ref.dtype) for ref in refs])


def fastest(step: Callable[[], Any], seconds: float, least: int = 3) -> float:
    """Return the seconds of the fastest of the steps that run in about `seconds`, at least `least` of them."""
    best, stop, made = float("inf"), time.perf_counter() + seconds, 0
    while made < least or time.perf_counter() < stop:
        start = time.perf_counter()
        step()
        best = min(best, time.perf_counter() - start)
        made += 1
    return best


@final
class TimedStep:
    """A training step of a trainer on the CPU, which can run as a whole and kernel by kernel.

    Each figure is the best of all rounds so far. Each step starts from the same optimizer state.

    whole       the seconds of the fastest step so far
    executor    of a compiled step
    """

    def __init__(self, trainer: ScalarTrainer, optimizer: Optimizer, batch: Sequence[Any]):
        state = trainer.init_optim(optimizer)
        self.step: Callable[[], Any] = lambda: trainer.advance(optimizer, state, *batch)
        self.step()
        self.whole = float("inf")
        self.executor: CpuExecutor | None = None
        self._trainer = trainer
        self._works: list[Work] = []
        self._ops: list[TimedOp] = []
        self._best: list[float] = []
        interpreter = trainer.in_front(lambda inner: inner)
        if isinstance(interpreter, CompiledOps):
            self.executor = interpreter.programs.executors[-1]
            assert self.executor.plan is not None
            self._works = works(self.executor.plan)

    def run(self, seconds: float) -> float:
        """Run steps for about `seconds`; return the time of the fastest so far."""
        self.whole = min(self.whole, fastest(self.step, seconds))
        return self.whole

    def ops(self, rounds: int) -> list[tuple[TimedOp, float]]:
        """Return each op of an eager step, with its fewest seconds so far, after `rounds` more steps."""
        inner = self._trainer.in_front(lambda inner: inner)
        timed = Timed(inner)
        self._trainer.in_front(lambda _: timed)
        try:
            self.step()
            if not self._ops:
                timed.noted = self._ops
                self.step()
                timed.noted = None
            for _ in range(rounds):
                timed.seconds = []
                self.step()
                self._keep(timed.seconds)
        finally:
            self._trainer.in_front(lambda _: inner)
        return [*zip(self._ops, self._best, strict=True)]

    def kernels(self, rounds: int) -> list[tuple[Work, float]]:
        """Return each kernel of a compiled step, with its fewest seconds so far, after `rounds` more steps."""
        executor = self.executor
        assert executor is not None and executor.plan is not None
        try:
            for _ in range(rounds):
                executor.seconds = seconds = [0.0] * len(executor.plan.steps)
                self.step()
                self._keep(seconds)
        finally:
            executor.seconds = None
        return [(work, sum(self._best[work.first : work.first + work.steps])) for work in self._works]

    def _keep(self, seconds: list[float]) -> None:
        self._best = [*map(min, self._best, seconds)] if self._best else seconds
