"""What docs/reference.md says of the ops of TorchLean: each row by a formula of NumPy, and its note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, RangeError, ShapeError, derived
from tests.structure.test_reference_table import NAMES

F64 = Options(dtype="float64")
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((3, 4)), RNG.standard_normal((3, 4))
CUBE, VECTOR = RNG.standard_normal((2, 3, 4)), RNG.standard_normal(5)
IMAGE, POSITIVE = RNG.standard_normal((2, 6, 6)), np.abs(X) + 0.1
TIES = np.array([-1.0, 0.0, 1.0])
INDEX = np.array([1, 0, 4, 9])
SQUARE = RNG.standard_normal((4, 4))


def run(f: Callable[..., Any], *args: Any) -> Any:
    return opstage.run(f, *args, options=F64)


def slope(f: Callable[..., Any], *args: Any) -> Any:
    """The gradient of the sum of f with respect to its first argument."""
    return opstage.value_and_grad(lambda ops, *refs: ops.sum(f(ops, *refs)), *args, options=F64)[1]


def is_(f: Callable[..., Any], expected: Any, *args: Any) -> bool:
    np.testing.assert_allclose(run(f, *args), expected, rtol=1e-12, atol=1e-13)
    return True


def op(name: str, expected: Any, *args: Any, **static: Any) -> bool:
    return is_(lambda ops, *refs: getattr(ops, name)(*refs, **static), expected, *args)


def refused(kind: type[Exception], f: Callable[..., Any], *args: Any) -> bool:
    with pytest.raises(kind):
        run(f, *args)
    return True


def windows(x: Any, kernel: int, stride: int = 1) -> Any:
    """(C, H, W) -> (C, H', W', kernel, kernel)."""
    view = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    return view[:, ::stride, ::stride]


def padded(x: Any, by: int, value: float = 0.0) -> Any:
    return np.pad(x, ((0, 0), (by, by), (by, by)), constant_values=value)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def softmax(x: Any) -> Any:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def correlated(x: Any, kernel: Any) -> Any:
    return np.einsum("chwij,ocij->ohw", windows(x, kernel.shape[-1]), kernel)


KERNEL, TURNED = RNG.standard_normal((3, 2, 3, 3)), RNG.standard_normal((2, 3, 3, 3))
MEAN = X.mean(-1, keepdims=True)
NORMAL = (X - MEAN) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
GAMMA, BETA = RNG.standard_normal(4), RNG.standard_normal(4)
OF_IMAGE = IMAGE.mean((1, 2), keepdims=True), IMAGE.var((1, 2), keepdims=True)


def batch_normalised(ops: Any, x: Any) -> Any:
    return ops.batch_norm(x, None, None, channel_axis=0)


def attention(ops: Any, x: Any, w: Any) -> Any:
    mask = ops.const(np.array([[True] * 4, [True] * 4, [False] * 4, [True] * 4]))
    return ops.multi_head_attention(w, w, w, w, x, mask, num_heads=2)


def rotated(ops: Any, k: Any, x: Any) -> Any:
    return ops.conv_transpose(k, None, x)


def transposed_by_adjoint() -> bool:
    """<conv(k, x), y> = <x, conv_transpose(k, y)>."""
    y = RNG.standard_normal((3, 4, 4))
    back = run(rotated, KERNEL, y)
    np.testing.assert_allclose((correlated(IMAGE, KERNEL) * y).sum(), (back * IMAGE).sum(), rtol=1e-12)
    return back.shape == IMAGE.shape


def drawn(backend: str, seed: int) -> Any:
    options = Options(backend=backend, seed=seed)
    return opstage.run(lambda ops: (ops.rand_uniform(shape=(64,)), ops.rand_uniform(shape=(64,))), options=options)


def masks() -> Any:
    return run(lambda ops, p: ops.bernoulli_mask(p, shape=(2000,)), 0.25)


CLAIMS: dict[str, Callable[[], bool]] = {
    "const": lambda: (
        run(lambda ops: ops.const(0.1)).dtype == np.float64 and run(lambda ops: ops.const([1, 2])).sum() == 3
    ),
    "add": lambda: op("add", X + Y, X, Y),
    "sub": lambda: op("sub", X - Y, X, Y),
    "mul": lambda: op("mul", X * Y, X, Y),
    "scale": lambda: op("scale", 2.5 * X, X, c=2.5),
    "abs": lambda: op("abs", abs(X), X) and slope(lambda ops, x: ops.abs(x), TIES).tolist() == [-1, 0, 1],
    "sqrt": lambda: op("sqrt", np.sqrt(POSITIVE), POSITIVE),
    "clamp": lambda: (
        op("clamp", np.clip(X, -0.5, 0.5), X, lo=-0.5, hi=0.5)
        and slope(lambda ops, x: ops.clamp(x, lo=-1.0, hi=0.5), TIES).tolist() == [1, 1, 0]
    ),
    "max": lambda: (
        op("maximum", np.maximum(X, Y), X, Y)
        and slope(lambda ops, x, y: ops.maximum(x, y), TIES, TIES).tolist() == [0.5] * 3
    ),
    "min": lambda: (
        op("minimum", np.minimum(X, Y), X, Y)
        and slope(lambda ops, x, y: ops.minimum(x, y), TIES, TIES).tolist() == [0.5] * 3
    ),
    "broadcastTo": lambda: op("broadcast_to", np.broadcast_to(X, (2, 3, 4)), X, shape=(2, 3, 4)),
    "reshape": lambda: op("reshape", X.reshape(2, 6), X, shape=(2, -1)),
    "transpose2d": lambda: op("transpose2d", X.T, X),
    "transpose3dFirstToLast": lambda: op("transpose3d_first_to_last", CUBE.transpose(1, 2, 0), CUBE),
    "transpose3dLastToFirst": lambda: op("transpose3d_last_to_first", CUBE.transpose(2, 0, 1), CUBE),
    "transpose3dLastTwo": lambda: op("transpose3d_last_two", CUBE.transpose(0, 2, 1), CUBE),
    "swapAdjacentAtDepth": lambda: op("swap_adjacent_at_depth", CUBE.swapaxes(1, 2), CUBE, depth=1),
    "reduceSum": lambda: (
        op("reduce_sum", CUBE.sum((0, 2), keepdims=True), CUBE, axis=(0, 2), keepdims=True)
        and op("reduce_sum", X.sum(), X)
    ),
    "reduceMean": lambda: (
        op("reduce_mean", X.mean(1), X, axis=1)
        and refused(ShapeError, lambda ops, x: ops.reduce_mean(x, axis=0), np.zeros((0, 2)))
    ),
    "gatherScalar": lambda: (
        op("gather_scalar", VECTOR[3], VECTOR, index=3)
        and refused(ShapeError, lambda ops, x: ops.gather_scalar(x, index=5), VECTOR)
    ),
    "gatherRow": lambda: (
        op("gather_row", X[2], X, index=2) and refused(ShapeError, lambda ops, x: ops.gather_row(x, index=3), X)
    ),
    "gatherScalarNat": lambda: op("gather_scalar", 0.0, VECTOR, index=9, mode="zero"),
    "*gather a scalar by a NatRef*": lambda: (
        op("gather_vec", VECTOR[2], VECTOR, 2, mode="zero") and op("gather_vec", 0.0, VECTOR, 9, mode="zero")
    ),
    "*gather a row by a NatRef*": lambda: (
        op("gather_rows", X[2], X, 2, mode="zero") and op("gather_rows", np.zeros(4), X, 9, mode="zero")
    ),
    "gatherVecNat": lambda: (
        op("gather_vec", [*VECTOR[INDEX[:3]], 0], VECTOR, INDEX, mode="zero")
        and refused(RangeError, lambda ops, x, i: ops.gather_vec(x, i), VECTOR, INDEX)
    ),
    "gatherRowsNat": lambda: (
        op("gather_rows", X[[[0, 1], [2, 2]]], X, np.array([[0, 1], [2, 2]]))
        and refused(RangeError, lambda ops, x, i: ops.gather_rows(x, i), X, INDEX)
    ),
    "*gather scalars by a NatVecRef*": lambda: op("gather_vec", VECTOR[INDEX[:3]], VECTOR, INDEX[:3]),
    "*gather rows by a NatVecRef*": lambda: op("gather_rows", X[INDEX[:2]], X, INDEX[:2]),
    "scatterAddVec": lambda: (
        is_(lambda ops, x, v: ops.scatter_add_vec(x, v, 1), VECTOR + 2.0 * (np.arange(5) == 1), VECTOR, 2.0)
        and op("scatter_add_vec", [0, 3, 0], np.zeros(3), np.ones(3), np.array([1, 1, 1]))
    ),
    "scatterAddRow": lambda: (
        is_(lambda ops, x, v: ops.scatter_add_row(x, v, 1), [[0, 0], [1, 2]], np.zeros((2, 2)), [1.0, 2.0])
        and op("scatter_add_row", [[2, 2]], np.zeros((1, 2)), np.ones((2, 2)), np.array([0, 0]))
    ),
    "matmul": lambda: is_(lambda ops, x, y: ops.matmul(x, ops.transpose2d(y)), X @ Y.T, X, Y),
    "bmm": lambda: op("bmm", CUBE[None] @ CUBE[None].swapaxes(2, 3), CUBE[None], CUBE[None].swapaxes(2, 3)),
    "concatVectors": lambda: is_(lambda ops, x, y: ops.concat([x, y]), [*VECTOR, *TIES], VECTOR, TIES),
    "concatDim0": lambda: is_(lambda ops, x, y: ops.concat([x, y, x], axis=1), np.concatenate([X, Y, X], 1), X, Y),
    "sliceRange0": lambda: op("slice", VECTOR[1:4:2], VECTOR, axis=0, start=1, length=2, step=2),
    "maxPool": lambda: (
        op("max_pool", windows(IMAGE, 3, 2).max((3, 4)), IMAGE, kernel=(3, 3), stride=2)
        and slope(lambda ops, x: ops.max_pool(x, kernel=(2, 2)), np.ones((1, 2, 2))).tolist() == [[[1, 0], [0, 0]]]
    ),
    "avgPool": lambda: (
        op("avg_pool", windows(IMAGE, 3).mean((3, 4)), IMAGE, kernel=(3, 3), stride=1)
        and op("avg_pool", [[[1]]], np.ones((1, 1, 1)), kernel=(2, 2), stride=2, padding=1, count_include_pad=False)
    ),
    "smoothMaxPool": lambda: op(
        "smooth_max_pool",
        np.log(windows(padded(np.exp(2 * IMAGE), 1), 3).sum((3, 4))) / 2,
        IMAGE,
        kernel=(3, 3),
        beta=2.0,
        stride=1,
        padding=1,
    ),
    "maxPool2d": lambda: op("max_pool2d", windows(IMAGE, 3, 3).max((3, 4)), IMAGE, kernel=3),
    "maxPool2dPad": lambda: op(
        "max_pool2d_pad", windows(padded(IMAGE, 1, -np.inf), 2, 2).max((3, 4)), IMAGE, kernel=2, padding=1
    ),
    "*alias of max_pool2d_pad*": lambda: not hasattr(opstage.Ops, "max_pool_2d_pad"),
    "smoothMaxPool2d": lambda: op(
        "smooth_max_pool2d", np.log(windows(np.exp(IMAGE), 2, 2).sum((3, 4))), IMAGE, kernel=2, beta=1.0
    ),
    "avgPool2d": lambda: op("avg_pool2d", windows(IMAGE, 2, 2).mean((3, 4)), IMAGE, kernel=2),
    "avgPool2dPad": lambda: op(
        "avg_pool2d_pad", windows(padded(IMAGE, 1), 2, 2).mean((3, 4)), IMAGE, kernel=2, padding=1
    ),
    "*alias of avg_pool2d_pad*": lambda: not hasattr(opstage.Ops, "avg_pool_2d_pad"),
    "relu": lambda: op("relu", np.maximum(X, 0), X) and slope(lambda ops, x: ops.relu(x), TIES).tolist() == [0, 0, 1],
    "sigmoid": lambda: (
        op("sigmoid", sigmoid(X), X) and run(lambda ops, x: ops.sigmoid(x), np.array([-1e4, 1e4])).tolist() == [0, 1]
    ),
    "tanh": lambda: op("tanh", np.tanh(X), X),
    "softmax": lambda: op("softmax", softmax(X), X) and op("softmax", softmax(X.T).T, X, axis=0),
    "logSoftmax": lambda: (
        op("log_softmax", np.log(softmax(X)), X) and refused(TypeError, lambda ops, x: ops.log_softmax(x, eps=1e-5), X)
    ),
    "softplus": lambda: (
        op("softplus", np.log1p(np.exp(X)), X)
        and run(lambda ops, x: ops.softplus(x), np.array([-1e4, 1e4])).tolist() == [0, 1e4]
    ),
    "exp": lambda: op("exp", np.exp(X), X),
    "log": lambda: op("log", [-np.inf, np.nan, 0.0], np.array([0.0, -1.0, 1.0])),
    "inv": lambda: op("inv", 1 / X, X),
    "detach": lambda: (
        op("detach", X, X) and slope(lambda ops, x: ops.mul(x, ops.detach(x)), TIES).tolist() == TIES.tolist()
    ),
    "safeLog": lambda: op("safe_log", np.log(np.maximum(X, 0.5)), X, eps=0.5),
    "sum": lambda: op("sum", X.sum(), X),
    "flatten": lambda: op("flatten", CUBE.reshape(2, 12), CUBE, start=1, end=2),
    "linear": lambda: (
        op("linear", CUBE @ Y.T + TIES, Y, TIES, CUBE) and is_(lambda ops, w, x: ops.linear(w, None, x), X @ Y.T, Y, X)
    ),
    "mseLoss": lambda: op("mse_loss", ((X - Y) ** 2).mean(), X, Y),
    "layerNorm": lambda: op("layer_norm", NORMAL * GAMMA + BETA, X, GAMMA, BETA, eps=1e-5),
    "batchnormChannelFirst": lambda: (
        is_(lambda ops, x: batch_normalised(ops, x)[0], (IMAGE - OF_IMAGE[0]) / np.sqrt(OF_IMAGE[1] + 1e-5), IMAGE)
        and is_(lambda ops, x: batch_normalised(ops, x)[1], OF_IMAGE[0].ravel(), IMAGE)
        and is_(lambda ops, x: batch_normalised(ops, x)[2], OF_IMAGE[1].ravel() * 36 / 35, IMAGE)
    ),
    "multiHeadAttention": lambda: bool((run(attention, SQUARE, SQUARE)[2] == 0).all()),
    "conv": lambda: (
        is_(lambda ops, k, x: ops.conv(k, None, x), correlated(IMAGE, KERNEL), KERNEL, IMAGE)
        and run(lambda ops, k, x: ops.conv(k, None, x, dilation=2, groups=2), KERNEL[:2, :1], IMAGE[None]).shape
        == (1, 2, 2, 2)
        and run(lambda ops, k, x: ops.conv(k, None, x), KERNEL[..., 0], IMAGE[..., 0]).shape == (3, 4)
    ),
    "convTranspose": lambda: (
        transposed_by_adjoint()
        and run(
            lambda ops, k, x: ops.conv_transpose(k, None, x, stride=2, output_padding=1, dilation=2, groups=2),
            TURNED,
            IMAGE,
        ).shape
        == (6, 16, 16)
    ),
    "conv2d": lambda: is_(lambda ops, k, x: ops.conv2d(k, None, x), correlated(IMAGE, KERNEL), KERNEL, IMAGE),
    "convTranspose2d": lambda: is_(
        lambda ops, k, x: ops.conv_transpose2d(k, None, x), run(rotated, TURNED, IMAGE), TURNED, IMAGE
    ),
    "*alias of conv2d*": lambda: not hasattr(opstage.Ops, "conv_2d"),
    "bernoulliMask": lambda: set(masks().tolist()) == {0.0, 1.0} and abs(masks().mean() - 0.25) < 0.05,
    "randUniform": lambda: (
        np.array_equal(drawn("eager", 3), drawn("compiled", 3))
        and not np.array_equal(drawn("eager", 3)[0], drawn("eager", 3)[1])
        and not np.array_equal(drawn("eager", 3), drawn("eager", 4))
    ),
    "*SiLU*": lambda: op("silu", X * sigmoid(X), X),
    "*GELU*": lambda: (
        op("gelu", 0.5 * X * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))), X)
        and not np.array_equal(
            run(lambda ops, x: ops.gelu(x, approximate="none"), X),
            run(lambda ops, x: ops.gelu(x, approximate="tanh"), X),
        )
    ),
    "*global average pooling, C×H×W*": lambda: is_(derived.global_avg_pool, IMAGE.mean((1, 2)), IMAGE),
    "*global average pooling, N×C×H×W*": lambda: is_(derived.global_avg_pool, IMAGE.mean((1, 2))[None], IMAGE[None]),
    # elsewhere in the document
    "*axisMap as an array*": lambda: op("permute", CUBE.transpose(2, 0, 1), CUBE, axes=(2, 0, 1)),
    "Cuda.Buffer.randUniform": lambda: np.array_equal(drawn("eager", 5), drawn("compiled", 5)),
}
ROWS = {row[0].replace("`", ""): row for row in NAMES if row[1].startswith("`ops.") or "global_avg_pool" in row[1]}


@pytest.mark.parametrize("name", ROWS)
def test_a_row_says_what_happens(name: str) -> None:
    assert CLAIMS[name]()


def test_claims_are_of_rows_that_exist() -> None:
    assert set(CLAIMS) == set(ROWS)
