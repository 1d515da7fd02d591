"""JAX: the whole training step under one jit, its buffers donated; NHWC convolutions."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.workloads import LEARNING_RATE, WEIGHT_DECAY, Chain, Cnn, Gpt, Lstm, Mlp

PRECISIONS = {"fp32": "float32", "tf32": "tensorfloat32"}


def step(workload: Any, device: str = "cpu", precision: str = "fp32") -> Callable[[], float] | None:
    if isinstance(workload, Chain):
        return None  # jit of an unrolled chain takes minutes
    if isinstance(workload, Lstm):
        return None  # not written
    if device == "cuda":
        jax.config.update("jax_default_matmul_precision", PRECISIONS[precision])
    loss, params = {Mlp: _mlp, Cnn: _cnn, Gpt: _gpt}[type(workload)](workload)
    arrays = list(workload.data())
    if isinstance(workload, Cnn):
        arrays[0] = np.ascontiguousarray(np.transpose(arrays[0], (0, 2, 3, 1)))
    batch = [jnp.asarray(a) for a in arrays]
    zeros = partial(jax.tree.map, jnp.zeros_like)
    state = [params, zeros(params), zeros(params), jnp.zeros(())]

    update = jax.jit(adamw_step(loss), donate_argnums=(0, 1, 2, 3))

    def one() -> float:
        value, *state[:] = update(*state, *batch)
        return float(value)

    def one_on_gpu() -> float:
        value, *state[:] = jax.block_until_ready(update(*state, *jax.device_put(arrays)))
        return float(value)

    return one if device == "cpu" else one_on_gpu


def peak_of_gpu() -> int:
    """Bytes of arrays that the GPU held at most."""
    return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])


def adamw_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    """(params, m, v, t, *batch) -> loss, and all of those after one step of AdamW."""

    def update(params: Any, m: Any, v: Any, t: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, grads)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, grads)
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t

        def adamw(p: Any, m: Any, v: Any) -> Any:
            return p * (1 - LEARNING_RATE * WEIGHT_DECAY) - LEARNING_RATE * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)

        return value, jax.tree.map(adamw, params, m, v), m, v, t

    return update


def _weights(rng: np.random.Generator, *shape: int) -> Any:
    return jnp.asarray((rng.standard_normal(shape) / math.sqrt(math.prod(shape[:-1]))).astype(np.float32))


def _cross_entropy(logits: Any, labels: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], axis=-1))


def _mlp(w: Mlp) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    params = [(_weights(rng, a, b), jnp.zeros(b)) for a, b in pairwise(w.sizes)]

    def loss(params: Any, x: Any, y: Any) -> Any:
        *hidden, (weight, bias) = params
        for a, b in hidden:
            x = jax.nn.relu(x @ a + b)
        return _cross_entropy(x @ weight + bias, y)

    return loss, params


def _cnn(w: Cnn) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)
    a, b = w.channels
    params = {
        "k1": _weights(rng, 3, 3, 3, a),
        "c1": jnp.zeros(a),
        "k2": _weights(rng, 3, 3, a, b),
        "c2": jnp.zeros(b),
        "w1": _weights(rng, b * 64, w.dense),
        "b1": jnp.zeros(w.dense),
        "w2": _weights(rng, w.dense, w.classes),
        "b2": jnp.zeros(w.classes),
    }

    def conv(k: Any, c: Any, x: Any) -> Any:
        x = jax.lax.conv_general_dilated(x, k, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + c
        return jax.lax.reduce_window(jax.nn.relu(x), -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    def loss(p: Any, x: Any, y: Any) -> Any:
        x = conv(p["k2"], p["c2"], conv(p["k1"], p["c1"], x)).reshape(x.shape[0], -1)
        return _cross_entropy(jax.nn.relu(x @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"], y)

    return loss, params


def _gpt(w: Gpt) -> tuple[Any, Any]:
    rng = np.random.default_rng(1)

    def made(path: Any, shape: tuple[int, ...]) -> Any:
        name = path[-1].key
        if name in ("g", "b"):
            return jnp.full(shape, float(name == "g"))
        return (0.02 if len(path) == 1 else 1) * _weights(rng, *shape)

    return gpt_loss(w), jax.tree.map_with_path(made, gpt_shapes(w), is_leaf=lambda node: isinstance(node, tuple))


def gpt_shapes(w: Gpt) -> Any:
    """The shapes of the parameters."""
    d = w.width
    norm = {"g": (d,), "b": (d,)}

    def dense(inputs: int, outputs: int) -> Any:
        return {"w": (inputs, outputs), "b": (outputs,)}

    block = {"n1": norm, "qkv": dense(d, 3 * d), "out": dense(d, d), "n2": norm}
    block |= {"up": dense(d, 4 * d), "down": dense(4 * d, d)}
    return {
        "token": (w.vocabulary, d),
        "place": (w.length, d),
        "blocks": [block] * w.layers,
        "norm": norm,
        "head": dense(d, w.vocabulary),
    }


def gpt_loss(w: Gpt) -> Callable[..., Any]:
    """Mean cross-entropy of a `Gpt` workload."""
    d = w.width

    def layer_norm(p: Any, x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5) * p["g"] + p["b"]

    def linear(p: Any, x: Any) -> Any:
        return x @ p["w"] + p["b"]

    def block(p: Any, x: Any) -> Any:
        n, t, _ = x.shape
        q, k, v = jnp.moveaxis(linear(p["qkv"], layer_norm(p["n1"], x)).reshape(n, t, 3, w.heads, -1), 2, 0)
        a = jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(n, t, d)
        x = x + linear(p["out"], a)
        return x + linear(p["down"], jax.nn.gelu(linear(p["up"], layer_norm(p["n2"], x)), approximate=True))

    def loss(p: Any, tokens: Any, targets: Any) -> Any:
        x = p["token"][tokens] + p["place"]
        for layer in p["blocks"]:
            x = block(layer, x)
        return _cross_entropy(linear(p["head"], layer_norm(p["norm"], x)), targets)

    return loss
