"""Programs and ONNX models of many kinds, for tests of what comes in and goes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from onnx import TensorProto

from opstage import Spec, derived
from tests.interop.onnx.exported import SHIPPED, Exported, shipped
from tests.interop.onnx.models import classifier, model, node
from tests.interop.onnx.test_control import branching, halving

RNG = np.random.default_rng(5)
WHERE = {"gpt": ("T <= 128",)}


def f32(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def of(program: Callable[..., Any], params: dict[str, Any], *inputs: tuple[Any, str]) -> Exported:
    """A program of parameters and of inputs, each with its Spec."""
    specs = tuple(Spec(text, dtype=None if x.dtype.kind == "f" else str(x.dtype)) for x, text in inputs)
    return Exported(lambda ops, params, *xs: program(ops, params, *xs), (params,), specs, tuple(x for x, _ in inputs))


def _recurrent(ops: Any, p: Any, x: Any) -> Any:
    def step(ops: Any, h: Any, row: Any) -> Any:
        h = ops.tanh(ops.linear(p["u"], None, h) + ops.linear(p["w"], p["b"], row))
        return h, h

    first = ops.full(shape=(x.shape[1], 4), value=0.0)
    return ops.scan(step, first, x)


PROGRAMS: dict[str, Callable[[], Exported]] = {
    "convolutions": lambda: of(
        lambda ops, p, x: ops.conv_transpose(
            p["up"], None, ops.relu(ops.conv(p["k"], p["b"], x, stride=2, padding=1, groups=2)), stride=2
        ),
        {"k": f32(4, 1, 3, 3), "b": f32(4), "up": f32(4, 2, 2, 2)},
        (f32(2, 2, 8, 8), "B 2 8 8"),
    ),
    "pools": lambda: of(
        lambda ops, p, x: [
            ops.max_pool(x, kernel=(2, 2)),
            ops.avg_pool(x, kernel=(3, 3), stride=1, padding=1) * p["c"],
        ],
        {"c": f32(1)},
        (f32(2, 3, 6, 6), "B 3 6 6"),
    ),
    "transforms": lambda: of(  # of a length that is named, and of one that is known
        lambda ops, p, x: [
            ops.irfft(ops.rfft(x, axis=1) * p["c"], n=x.shape[1], axis=1),
            ops.ifft(ops.fft(ops.stack([x, x], axis=2), axis=1, norm="forward"), axis=1, norm="forward"),
            ops.irfft(ops.fft(ops.stack([x, x], axis=2), axis=0, norm="ortho"), n=4, axis=0, norm="ortho"),
        ],
        {"c": f32(1)},
        (f32(3, 7), "3 T"),
    ),
    "norms": lambda: of(
        lambda ops, p, x: ops.rms_norm(ops.layer_norm(x, p["g"], p["b"]), p["g"]),
        {"g": f32(6), "b": f32(6)},
        (f32(3, 5, 6), "B T 6"),
    ),
    "groups": lambda: of(
        lambda ops, p, x: ops.group_norm(x, p["g"], p["b"], groups=2),
        {"g": f32(4), "b": f32(4)},
        (f32(2, 4, 5), "B 4 5"),
    ),
    "attention": lambda: of(
        lambda ops, p, x: ops.scaled_dot_product_attention(x, x * p["k"], x, causal=True),
        {"k": f32(4)},
        (f32(2, 2, 5, 4), "B 2 T 4"),
    ),
    "embedding": lambda: of(
        lambda ops, p, i: ops.softmax(ops.gather_rows(p["table"], i)),
        {"table": f32(9, 4)},
        (np.array([[1, 8, 0]]), "B T"),
    ),
    "recurrent": lambda: of(_recurrent, {"u": f32(4, 4), "w": f32(4, 3), "b": f32(4)}, (f32(6, 2, 3), "T B 3")),
    "activations": lambda: of(
        lambda ops, p, x: [
            getattr(ops, name)(x * p["c"]) for name in ("gelu", "silu", "elu", "mish", "softplus", "erf")
        ],
        {"c": f32(1)},
        (f32(7), "N"),
    ),
    "reductions": lambda: of(
        lambda ops, p, x: [
            ops.reduce_max(x * p["c"], axis=1),
            ops.reduce_mean(x, axis=0),
            derived.logsumexp(ops, x * p["c"], axis=1),
            ops.cumsum(x * p["c"], axis=1),
        ],
        {"c": f32(1)},
        (f32(4, 6), "B 6"),
    ),
    "shapes": lambda: of(
        lambda ops, p, x: ops.concat(
            [ops.reshape(x, shape=(x.shape[0] * x.shape[1], 4)) * p["c"], ops.permute(x, axes=(1, 0, 2))[0]], axis=0
        ),
        {"c": f32(4)},
        (f32(3, 5, 4), "B T 4"),
    ),
    "ordering": lambda: of(
        lambda ops, p, x: [derived.top_k(ops, x * p["c"], k=2, axis=1)[0], ops.argmax(x, axis=1)],
        {"c": f32(1)},
        (f32(4, 6), "B 6"),
    ),
    "resize": lambda: of(
        lambda ops, p, x: derived.resize(ops, x * p["c"], size=(9, 9), axes=(2, 3), mode="linear"),
        {"c": f32(1)},
        (f32(2, 3, 6, 6), "B 3 6 6"),
    ),
    "choice": lambda: of(
        lambda ops, p, x: ops.cond(
            ops.less(ops.reduce_sum(x), 0.0), lambda ops: ops.exp(x * p["c"]), lambda ops: ops.tanh(x * p["c"])
        ),
        {"c": f32(1)},
        (f32(4), "N"),
    ),
    "solve": lambda: of(
        lambda ops, p, x: ops.matmul(p["a"], x) - ops.maximum(x, 0.0), {"a": f32(4, 4)}, (f32(4, 3), "4 B")
    ),
}
ALL: dict[str, Callable[[], Exported]] = {**{name: partial(shipped, name) for name in SHIPPED}, **PROGRAMS}


def _chain() -> tuple[Any, tuple[Any, ...]]:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["b"]),
        node("Unsqueeze", ["b", "zeros"], ["b1"]),
        node("Concat", ["b1", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["flat"]),
        node("MatMul", ["flat", "w"], ["y"]),
        node("LeakyRelu", ["y"], ["z"], alpha=0.2),
        node("Softmax", ["z"], ["p"], axis=-1),
    ]
    weights = {"zero": np.array(0), "zeros": np.array([0]), "rest": np.array([-1]), "w": f32(12, 5)}
    return model(nodes, {"x": ["B", 3, 4]}, ["p", "z"], weights), (f32(2, 3, 4),)


def _images() -> tuple[Any, tuple[Any, ...]]:
    nodes = [
        node("Conv", ["x", "k", "b"], ["c"], pads=[1, 1, 0, 0], strides=[2, 1]),
        node("InstanceNormalization", ["c", "g", "b"], ["n"]),
        node("Clip", ["n", "low", "high"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[1, 1], pads=[0, 0, 1, 1]),
        node("Resize", ["m", "", "scales"], ["u"], mode="nearest"),
        node("GlobalAveragePool", ["u"], ["y"]),
    ]
    weights = {
        "k": f32(4, 3, 3, 3),
        "b": f32(4),
        "g": f32(4),
        "low": np.array(0, np.float32),
        "high": np.array(6, np.float32),
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    return model(nodes, {"x": ["B", 3, 8, 8]}, ["y"], weights), (f32(2, 3, 8, 8),)


def _recurrences() -> tuple[Any, tuple[Any, ...]]:
    nodes = [
        node("LSTM", ["x", "w", "r", "b"], ["h", "last"], hidden_size=4, direction="bidirectional"),
        node("GRU", ["x", "gw", "gr"], ["g"], hidden_size=4),
    ]
    weights = {"w": f32(2, 16, 3), "r": f32(2, 16, 4), "b": f32(2, 32), "gw": f32(1, 12, 3), "gr": f32(1, 12, 4)}
    return model(nodes, {"x": ["T", "B", 3]}, ["h", "last", "g"], weights), (f32(5, 2, 3),)


def _integers() -> tuple[Any, tuple[Any, ...]]:
    nodes = [
        node("Gather", ["table", "i"], ["e"]),
        node("ReduceMean", ["e", "one"], ["m"], keepdims=0),
        node("Mod", ["i", "three"], ["r"]),
        node("OneHot", ["r", "depth", "values"], ["h"]),
        node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
    ]
    weights = {
        "table": f32(9, 4),
        "one": np.array([1]),
        "three": np.array([3]),
        "depth": np.array(3),
        "values": np.array([0, 1], np.float32),
    }
    proto = model(nodes, {"i": (TensorProto.INT64, ["B", "T"])}, ["m", "h", "f"], weights)
    return proto, (np.array([[1, 8, 0], [4, 5, 6]]),)


def _choices() -> tuple[Any, tuple[Any, ...]]:
    nodes = [
        node("Greater", ["x", "zero"], ["m"]),
        node("Where", ["m", "x", "half"], ["w"]),
        node("TopK", ["w", "two"], ["v", "i"], axis=-1),
        node("CumSum", ["w", "axis"], ["c"]),
        node("Einsum", ["w", "c"], ["e"], equation="bi,bj->bij"),
    ]
    weights = {
        "zero": np.array(0, np.float32),
        "half": np.array(0.5, np.float32),
        "two": np.array([2]),
        "axis": np.array(1),
    }
    return model(nodes, {"x": ["B", 5]}, ["v", "i", "e"], weights), (f32(3, 5),)


def _places() -> tuple[Any, tuple[Any, ...]]:
    """Elements at places, and a normalisation whose statistics the file computes, so that they do not move."""
    nodes = [
        node("ScatterElements", ["x", "i", "u"], ["s"], axis=1),
        node("GatherElements", ["s", "i"], ["g"], axis=1),
        node("Mul", ["mean", "two"], ["moved"]),
        node("BatchNormalization", ["s", "mean", "mean", "moved", "variance"], ["n"]),
    ]
    weights = {
        "i": np.array([[2, 0], [1, 4]]),
        "u": f32(2, 2),
        "mean": f32(5),
        "two": np.array(2, np.float32),
        "variance": np.ones(5, np.float32),
    }
    return model(nodes, {"x": [2, 5]}, ["g", "n"], weights), (f32(2, 5),)


FILES: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "classifier": lambda: (classifier(), (f32(5, 4),)),
    "chain": _chain,
    "images": _images,
    "recurrences": _recurrences,
    "integers": _integers,
    "choices": _choices,
    "places": _places,
    "branching": lambda: (branching(), (f32(3, 2),)),
    "halving": lambda: (halving(), (np.abs(f32(3, 2)) * 9,)),
    "halving some times": lambda: (halving("times"), (np.abs(f32(3, 2)) * 9, np.array(3))),
    **{name: lambda name=name: (ALL[name]().proto(), ALL[name]().inputs) for name in SHIPPED},
}
