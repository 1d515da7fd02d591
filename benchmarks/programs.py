"""What both sides of ours run: the workloads as programs, on an interpreter that the options name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np

import opstage
from benchmarks.sent import sent_by_processes
from benchmarks.workloads import LEARNING_RATE, WEIGHT_DECAY, Chain, Cnn, Gpt, Lstm, Mlp
from opstage import Options, Spec
from opstage.init import build
from opstage.models import Model, lstm
from opstage.ops.dims import DimScope
from opstage.ops.mesh import parse_mesh
from opstage.ops.spec import sized


def step(workload: Any, options: Options) -> Callable[[], float]:
    """A function that does one whole training step and returns its loss."""
    if isinstance(workload, Chain):
        return _chain(workload, options)
    loss, params = {Mlp: _mlp, Cnn: _cnn, Gpt: _gpt, Lstm: _lstm}[type(workload)](workload)
    trainer = opstage.scalar_trainer(loss, params, options=options)
    optimizer = opstage.optim.adamw(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    state, batch = trainer.init_optim(optimizer), workload.data()

    def one() -> float:
        return float(trainer.advance(optimizer, state, *batch).loss)

    return done(one, options)


def predicted(workload: Any, options: Options) -> int:
    """The bytes that a process sends in a step where each hosts one rank of the options' mesh."""
    loss, params = {Mlp: _mlp, Cnn: _cnn, Gpt: _gpt, Lstm: _lstm}[type(workload)](workload)
    mesh = parse_mesh(options.mesh)
    batch = [Spec(each.shape, "int64" if each.dtype.kind == "i" else None) for each in workload.data()]
    optimizer = opstage.optim.adamw(lr=LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    trainer = opstage.scalar_trainer(loss, params, options=options)
    sent = sent_by_processes(trainer.report(*batch, optimizer=optimizer).program, mesh, mesh.ranks)
    assert len(set(sent)) == 1, sent
    return sent[0]


def shipped_step(made: Model, sizes: Mapping[str, int], options: Options) -> Callable[[], None]:
    """A function that does one whole training step of a shipped model on a batch of the given sizes."""
    rng = np.random.default_rng(0)
    types = [spec.bind(DimScope(), np.dtype(np.float32)) for spec in sized(made.batch, sizes)]
    batch = [
        (rng.random(t.shape) if t.dtype.kind == "f" else rng.integers(0, 2, t.shape)).astype(t.dtype) for t in types
    ]
    params = build(made.init, dtype=options.dtype, seed=0)
    state = None if made.state is None else build(made.state, dtype=options.dtype, seed=0)
    trainer = opstage.scalar_trainer(made.loss, params, *made.batch, options=options, state=state)
    del params, state
    optimizer = opstage.optim.adamw(lr=LEARNING_RATE)
    held = trainer.init_optim(optimizer)

    def one() -> None:
        trainer.advance(optimizer, held, *batch)

    return one


def done(one: Callable[[], float], options: Options) -> Callable[[], float]:
    """`one`, which returns once the device has nothing left to do."""
    if options.device == "cpu":
        return one
    from opstage.compiler.gpu.probe import find_device

    device = find_device()

    def waited() -> float:
        value = one()
        device.synchronize()
        return value

    return waited


def peak_of_gpu() -> int:
    """Bytes of tensors that the device held at most."""
    from opstage.compiler.gpu.probe import find_device

    return find_device().peak


def _weights(rng: np.random.Generator, *shape: int) -> Any:
    return (rng.standard_normal(shape) / math.sqrt(math.prod(shape[1:]))).astype(np.float32)


def _mlp(w: Mlp) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    params = [{"w": _weights(rng, b, a), "b": np.zeros(b, np.float32)} for a, b in pairwise(w.sizes)]

    def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
        *hidden, last = params
        for layer in hidden:
            x = ops.relu(ops.linear(layer["w"], layer["b"], x))
        return ops.cross_entropy(ops.linear(last["w"], last["b"], x), y)

    return loss, params


def _cnn(w: Cnn) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    a, b = w.channels
    params = {
        "k1": _weights(rng, a, 3, 3, 3),
        "c1": np.zeros(a, np.float32),
        "k2": _weights(rng, b, a, 3, 3),
        "c2": np.zeros(b, np.float32),
        "w1": _weights(rng, w.dense, b * 64),
        "b1": np.zeros(w.dense, np.float32),
        "w2": _weights(rng, w.classes, w.dense),
        "b2": np.zeros(w.classes, np.float32),
    }

    def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
        x = ops.max_pool2d(ops.relu(ops.conv(p["k1"], p["c1"], x, padding=1)), kernel=2)
        x = ops.max_pool2d(ops.relu(ops.conv(p["k2"], p["c2"], x, padding=1)), kernel=2)
        x = ops.relu(ops.linear(p["w1"], p["b1"], ops.flatten(x, start=1)))
        return ops.cross_entropy(ops.linear(p["w2"], p["b2"], x), y)

    return loss, params


def _gpt(w: Gpt) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    d = w.width

    def norm() -> dict[str, Any]:
        return {"g": np.ones(d, np.float32), "b": np.zeros(d, np.float32)}

    def dense(inputs: int, outputs: int) -> dict[str, Any]:
        return {"w": _weights(rng, outputs, inputs), "b": np.zeros(outputs, np.float32)}

    params = {
        "token": (0.02 * rng.standard_normal((w.vocabulary, d))).astype(np.float32),
        "place": (0.02 * rng.standard_normal((w.length, d))).astype(np.float32),
        "blocks": [
            {
                "n1": norm(),
                "qkv": dense(d, 3 * d),
                "out": dense(d, d),
                "n2": norm(),
                "up": dense(d, 4 * d),
                "down": dense(4 * d, d),
            }
            for _ in range(w.layers)
        ],
        "norm": norm(),
        "head": dense(d, w.vocabulary),
    }

    def block(ops: Any, p: Any, x: Any) -> Any:
        n, t, _ = x.shape
        h = ops.linear(p["qkv"]["w"], p["qkv"]["b"], ops.layer_norm(x, p["n1"]["g"], p["n1"]["b"]))
        thirds = (ops.slice(h, axis=2, start=i * d, length=d) for i in range(3))
        q, k, v = (ops.permute(ops.reshape(x, shape=(n, t, w.heads, d // w.heads)), axes=(0, 2, 1, 3)) for x in thirds)
        a = ops.scaled_dot_product_attention(q, k, v, causal=True)
        a = ops.reshape(ops.permute(a, axes=(0, 2, 1, 3)), shape=(n, t, d))
        x = ops.add(x, ops.linear(p["out"]["w"], p["out"]["b"], a))
        h = ops.gelu(ops.linear(p["up"]["w"], p["up"]["b"], ops.layer_norm(x, p["n2"]["g"], p["n2"]["b"])))
        return ops.add(x, ops.linear(p["down"]["w"], p["down"]["b"], h))

    def loss(ops: Any, p: Any, tokens: Any, targets: Any) -> Any:
        x = ops.gather_rows(p["token"], tokens)
        x = x + p["place"]
        for layer in p["blocks"]:
            x = block(ops, layer, x)
        x = ops.layer_norm(x, p["norm"]["g"], p["norm"]["b"])
        logits = ops.linear(p["head"]["w"], p["head"]["b"], x)
        return ops.cross_entropy(ops.reshape(logits, shape=(-1, w.vocabulary)), ops.reshape(targets, shape=(-1,)))

    return loss, params


def _lstm(w: Lstm) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    params = {
        "input": _weights(rng, 4 * w.hidden, w.inputs),
        "recurrent": _weights(rng, 4 * w.hidden, w.hidden),
        "bias": np.zeros(4 * w.hidden, np.float32),
        "w": _weights(rng, w.classes, w.hidden),
        "b": np.zeros(w.classes, np.float32),
    }

    def loss(ops: Any, p: Any, x: Any, y: Any) -> Any:
        def step(ops: Any, state: Any, driven: Any) -> Any:
            state = lstm.cell(ops, p["recurrent"], state, driven)
            return state, state[0]

        nothing = ops.full(shape=(w.batch, w.hidden), value=0.0)
        _, states = ops.scan(step, (nothing, nothing), ops.linear(p["input"], p["bias"], x))
        logits = ops.linear(p["w"], p["b"], ops.flatten(states, start=0, end=1))
        return ops.cross_entropy(logits, ops.reshape(y, shape=(-1,)))

    return loss, params


def chain(ops: int) -> Callable[..., Any]:
    """`ops` ops on x, relu, tanh and mul by a parameter in turn, and their sum."""

    def program(o: Any, weight: Any, x: Any) -> Any:
        for i in range(ops):
            x = o.relu(x) if i % 3 == 0 else o.tanh(x) if i % 3 == 1 else o.mul(x, weight)
        return o.sum(x)

    return program


def _chain(w: Chain, options: Options) -> Callable[[], float]:
    program, (x,), weight = chain(w.ops), w.data(), np.full(4, 0.9, np.float32)

    def one() -> float:
        value, _ = opstage.value_and_grad(program, weight, x, wrt=(0, 1), options=options)
        return float(value)

    return done(one, options)
