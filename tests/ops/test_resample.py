"""Resized axes against onnxruntime and by hand; sampled grids by hand; derivatives, named sizes and errors."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import opstage
from opstage import derived
from opstage.ops.errors import ShapeError
from opstage.ops.interpolation import COORDINATES, ROUNDINGS
from tests.ops.functions import COMPILED, FLOAT64, Row, assert_row

ROWS = [
    Row("linear by hand", ((2, 3),), lambda ops, x: derived.resize(ops, x, scale=2, axes=(1,)),
        lambda x: np.stack([x[:, 0], *[(3 * x[:, i] + x[:, j]) / 4 for i, j in ((0, 1), (1, 0), (1, 2), (2, 1))],
                            x[:, 2]], 1)),
    Row("cubic", ((1, 5, 4),), lambda ops, x: derived.resize(ops, x, size=(3, 7), mode="cubic"),
        lambda x: _dense(x, (3, 7), _cubic)),
    Row("antialias", ((7, 5),), lambda ops, x: derived.resize(ops, x, size=(3, 2), antialias=True),
        lambda x: _dense(x, (3, 2), _triangle)),
    Row("nearest", ((2, 5),), lambda ops, x: derived.resize(ops, x, size=(2, 3), mode="nearest"),
        lambda x: x[:, [0, 2, 4]]),
    Row("nearest twice", (np.arange(6).reshape(2, 3),),
        lambda ops, x: derived.resize(ops, x, scale=(2,), mode="nearest"), lambda x: np.repeat(x, 2, 1),
        gradient=False),
    Row("to nothing", ((2, 3),), lambda ops, x: derived.resize(ops, x, size=(0,)), lambda x: x[:, :0], gradient=False),
    Row("infinite neighbours", (np.array([np.inf, 1.0, 2.0, 3.0, np.nan]),),
        lambda ops, x: derived.resize(ops, x, size=(3,), coordinates="align_corners"),
        lambda x: x[[0, 2, 4]], gradient=False),
    Row("sampled", ((2, 2, 3, 4), (2, 3, 1, 2)), lambda ops, x, g: derived.grid_sample(ops, x, g),
        lambda x, g: _sampled(x, g)),
    Row("sampled along one axis", ((1, 2, 5), np.array([[[-1.0], [0.15], [0.97]]])),
        lambda ops, x, g: derived.grid_sample(ops, x, g, mode="cubic", padding="reflection", align_corners=True),
        lambda x, g: np.stack([np.sum(x[..., i] * w, -1) for i, w in map(_keys_at, (g[0, :, 0] + 1) * 2)], -1)),
    Row("nearest grid", ((1, 1, 5), np.array([[[-0.5], [0.25], [0.75], [3.0], [np.nan]]])),
        lambda ops, x, g: derived.grid_sample(ops, x, g, mode="nearest", align_corners=True),
        lambda x, g: np.concatenate([x[..., [1, 2, 4]], np.array([[[0.0, np.nan]]])], -1), gradient=False),
    Row("affine_grid", ((2, 2, 3),), lambda ops, t: derived.affine_grid(ops, t, size=(2, 1, 3, 2)),
        lambda t: np.stack([np.stack([np.stack([a @ np.array([x, y, 1.0]) for x in (-0.5, 0.5)])
                                      for y in (-2 / 3, 0.0, 2 / 3)]) for a in t])),
]  # fmt: skip


def _cubic(t: float, shrink: float) -> float:
    t, a = abs(t), -0.75
    if t < 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def _triangle(t: float, shrink: float) -> float:
    return max(0.0, 1 - abs(t) / shrink) / shrink


def _dense(x: Any, size: Any, kernel: Any) -> Any:
    """Every entry weighed by the kernel at its distance; what the ends are repeated by is as far as it goes."""
    for axis, m in zip(range(x.ndim - len(size), x.ndim), size):
        n = x.shape[axis]
        inside = kernel is _triangle
        table = np.zeros((m, n))
        for j, i in itertools.product(range(m), range(-3 if not inside else 0, n + 3 if not inside else n)):
            table[j, min(max(i, 0), n - 1)] += kernel(i - ((j + 0.5) * n / m - 0.5), n / m)
        x = np.moveaxis(np.tensordot(table / table.sum(1, keepdims=True), x, (1, axis)), 0, axis)
    return x


def _sampled(x: Any, grid: Any) -> Any:
    out = np.zeros((*x.shape[:2], *grid.shape[1:-1]))
    for b, i, j in np.ndindex(*grid.shape[:-1]):
        place = [((g + 1) * n - 1) / 2 for g, n in zip(grid[b, i, j, ::-1], x.shape[2:])]
        for cell in np.ndindex(*x.shape[2:]):
            weight = math.prod(max(0.0, 1 - abs(p - c)) for p, c in zip(place, cell))
            out[b, :, i, j] += weight * x[(b, slice(None), *cell)]
    return out


def _keys_at(place: float) -> tuple[list[int], list[float]]:
    entries = [math.floor(place) + k for k in (-1, 0, 1, 2)]
    return [4 - abs(4 - abs(i)) for i in entries], [_cubic(i - place, 1.0) for i in entries]


def _pytorch_position(g: float, n: int, mode: str, padding: str, corners: bool) -> tuple[float, float]:
    """A position in entries and its derivative by g, as compute_source_index_set_grad of ATen's GridSampler.h."""
    place, slope = ((g + 1) / 2 * (n - 1), (n - 1) / 2) if corners else (((g + 1) * n - 1) / 2, n / 2)
    if padding == "zeros" or mode == "cubic":
        return place, slope
    if padding == "reflection":
        low, span = (0.0, n - 1) if corners else (-0.5, n)
        if span == 0:
            return 0.0, 0.0
        if place - low < 0:
            slope = -slope
        flips, extra = divmod(abs(place - low), span)
        place = extra + low if flips % 2 == 0 else span - extra + low
        slope = slope if flips % 2 == 0 else -slope
    return (place, slope) if 0 < place < n - 1 else (min(max(place, 0.0), n - 1.0), 0.0)


def _pytorch_taps(place: float, mode: str) -> list[tuple[int, float, float]]:
    """The entries, their weights, and the derivatives of these."""
    if mode == "nearest":
        return [(round(place), 1.0, 0.0)]
    low = math.floor(place)
    if mode == "linear":
        return [(low, 1 - (place - low), -1.0), (low + 1, place - low, 1.0)]
    a, taps = -0.75, []
    for i in range(low - 1, low + 3):
        t, sign = abs(place - i), math.copysign(1.0, place - i)
        near, far = 3 * (a + 2) * t * t - 2 * (a + 3) * t, 3 * a * t * t - 10 * a * t + 8 * a
        taps.append((i, _cubic(t, 1.0), sign * (near if t <= 1 else far)))
    return taps


def _pytorch_sampled(x: Any, grid: Any, mode: str, padding: str, corners: bool) -> tuple[Any, Any]:
    """grid_sample, and the gradient of its sum by the grid."""
    out, gradient = np.zeros((*x.shape[:2], *grid.shape[1:-1])), np.zeros(grid.shape)
    sizes, spatial = x.shape[2:], x.ndim - 2
    for at in np.ndindex(*grid.shape[:-1]):
        where = [_pytorch_position(g, n, mode, padding, corners) for g, n in zip(grid[at][::-1], sizes)]
        for corner in itertools.product(*[_pytorch_taps(place, mode) for place, _ in where]):
            cell = [i for i, _, _ in corner]
            if mode == "cubic" and padding != "zeros":  # each entry is clamped or reflected by itself
                given = [(2 * i / (n - 1) - 1 if n > 1 else 0.0) if corners else (2 * i + 1) / n - 1
                         for i, n in zip(cell, sizes)]  # fmt: skip
                cell = [round(_pytorch_position(g, n, "", padding, corners)[0]) for g, n in zip(given, sizes)]
            if not all(0 <= i < n for i, n in zip(cell, sizes)):
                continue
            entry = x[(at[0], slice(None), *cell)]
            out[(at[0], slice(None), *at[1:])] += entry * math.prod(w for _, w, _ in corner)
            for axis in range(spatial):
                weights = [slope if k == axis else w for k, (_, w, slope) in enumerate(corner)]
                gradient[at][spatial - 1 - axis] += entry.sum() * math.prod(weights) * where[axis][1]
    return out, gradient


_EDGES = {
    (4,): [[-1.0], [1.0], [-0.75], [0.75], [-3.0], [3.0], [5.0], [2.25], [-1.25], [0.0], [0.3], [-0.9]],
    (5, 3): [[-1.0, -1.0], [1.0, 1.0], [1.0, -0.3], [0.2, -1.0], [0.0, 0.5], [-2 / 3, 0.8], [3.0, -3.0], [1.2, 0.1]],
    (3, 1, 2): [[-1.0, 0.0, 1.0], [0.5, 0.2, 0.0], [0.3, 1.0, -1.0], [-0.5, -1.3, 2 / 3], [2.0, 0.0, 0.4]],
}


@pytest.mark.parametrize("sizes", _EDGES, ids=str)
@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample_at_edges_has_the_gradient_of_pytorch(mode: str, padding: str, corners: bool, sizes: Any) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(1, 2, *sizes)) * 30
    grid = np.array(_EDGES[sizes]).reshape(1, -1, *[1] * (len(sizes) - 1), len(sizes))
    out, gradient = _pytorch_sampled(x, grid, mode, padding, corners)

    def sampled(ops: Any, x: Any, grid: Any) -> Any:
        return derived.grid_sample(ops, x, grid, mode=mode, padding=padding, align_corners=corners)

    moved = rng.normal(size=grid.shape)
    for options in (FLOAT64, COMPILED):
        found, pullback = opstage.vjp(sampled, x, grid, options=options)
        np.testing.assert_allclose(found, out, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(pullback(np.ones(out.shape))[1], gradient, rtol=1e-10, atol=1e-10)
        _, tangent = opstage.jvp(sampled, (x, grid), (np.zeros(x.shape), moved), options=options)
        assert np.sum(tangent) == pytest.approx(np.sum(gradient * moved), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("size", [2, 7, 49, 50])
def test_affine_grid_of_the_identity_is_symmetric_and_ends_at_one(size: int) -> None:
    theta = np.array([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
    for dtype in ("float32", "float64"):
        grid = opstage.run(
            lambda ops, t: derived.affine_grid(ops, t, size=(1, 1, size, size), align_corners=True),
            theta,
            options=opstage.Options(dtype=dtype),
        )
        along = grid[0, 0, :, 0]
        assert along[0] == -1.0 and along[-1] == 1.0
        np.testing.assert_array_equal(along, -along[::-1])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_is_as_written_out(row: Row) -> None:
    assert_row(row)


@pytest.mark.parametrize("coordinates", [name for name in COORDINATES if name != "tf_half_pixel_for_nn"])
@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
def test_resized_as_in_onnxruntime(mode: str, coordinates: str) -> None:
    helper = pytest.importorskip("onnx").helper
    runtime = pytest.importorskip("onnxruntime")
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 6)).astype(np.float32)
    floats, whole = 1, 7  # TensorProto's numbers of the types

    def onnx(size: Any, scale: Any, **attributes: Any) -> Any:
        given = [
            helper.make_tensor("size", whole, [2], size) if size else helper.make_tensor("scale", floats, [2], scale)
        ]
        inputs = ["x", "", "", "size"] if size else ["x", "", "scale"]
        node = helper.make_node("Resize", inputs, ["y"], axes=[2, 3], **attributes)
        ends = [helper.make_tensor_value_info(name, floats, shape) for name, shape in (("x", x.shape), ("y", None))]
        graph = helper.make_graph([node], "resize", ends[:1], ends[1:], given)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, {"x": x})[0]

    variants: Any = [{}]
    if mode == "nearest":
        variants = [{"rounding": rounding} for rounding in ROUNDINGS]
    if mode == "cubic":
        variants = [{"exclude_outside": outside} for outside in (False, True)]
    spelled = {"rounding": "nearest_mode", "exclude_outside": "exclude_outside"}
    for (size, scale), variant in itertools.product(
        (((7, 9), None), ((1, 4), None), (None, (2.0, 1.5)), (None, (0.6, 0.8))), variants
    ):
        expected = onnx(
            size,
            scale,
            mode=mode,
            coordinate_transformation_mode=coordinates,
            **{spelled[k]: int(v) if isinstance(v, bool) else v for k, v in variant.items()},
        )
        ours = opstage.run(
            lambda ops, x, size=size, scale=scale, variant=variant: derived.resize(
                ops, x, size=size, scale=scale, mode=mode, coordinates=coordinates, **variant
            ),
            x,
        )
        assert ours.shape == expected.shape
        np.testing.assert_allclose(ours, expected, atol=2e-5, err_msg=f"{size} {scale} {variant}")


@pytest.mark.parametrize(
    ("call", "specs", "expected"),
    [
        (lambda ops, x: derived.resize(ops, x, scale=2, mode="nearest"), ("B C H W",), "B C 2*H 2*W"),
        (lambda ops, x: derived.resize(ops, x, size=(4, 5)), ("B C 8 8",), "B C 4 5"),
        (lambda ops, x, g: derived.grid_sample(ops, x, g, padding="border"), ("B C H W", "B P Q 2"), "B C P Q"),
        (lambda ops, t: derived.affine_grid(ops, t, size=(t.shape[0], 3, 4, 5)), ("B 2 3",), "B 4 5 2"),
    ],
)
def test_sizes_may_be_named(call: Any, specs: Any, expected: str) -> None:
    report = opstage.check(call, *map(opstage.Spec, specs))
    assert report.ok and not report.conditions, report
    assert " ".join(map(str, report.outputs.shape)) == expected


def test_a_named_axis_is_not_interpolated() -> None:
    report = opstage.check(lambda ops, x: derived.resize(ops, x, scale=2), opstage.Spec("B C H W"))
    assert "is resampled, which must be a number, not a named size" in str(report)


def test_fractions_are_interpolated_exactly() -> None:
    x = np.array([Fraction(1), Fraction(2)], dtype=object)
    ours = opstage.run(lambda ops, x: derived.resize(ops, x, size=(3,)), x, options=opstage.Options(dtype="exact"))
    assert list(ours) == [1, Fraction(3, 2), 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda ops, x: derived.resize(ops, x), "^resize at .*size or scale must be given"),
        (lambda ops, x: derived.resize(ops, x, size=(2,), mode="bilinear"), "mode must be one of .*'linear'"),
        (lambda ops, x: derived.resize(ops, x, size=(2,), coordinates="half"), r"did you mean 'half_pixel'\?"),
        (lambda ops, x: derived.resize(ops, x, size=(2, 2), axes=(1,)), "must be about the same axes"),
        (lambda ops, x: derived.resize(ops, x, scale=-1.0), "scale must be above 0 and finite but is -1"),
        (lambda ops, x: derived.resize(ops, x[:, :, :, :0], size=(3,)), "axis 3 is empty, and cannot be resized to 3"),
        (lambda ops, x: derived.resize(ops, x, size=(2,), mode="nearest", antialias=True), "antialias is of mode"),
        (lambda ops, x: derived.grid_sample(ops, x, x[:, :, :, :1]), "axis 3|a position has 1 numbers, not 2"),
        (lambda ops, x: derived.grid_sample(ops, x, x, padding="edge"), "padding must be one of"),
        (lambda ops, x: derived.affine_grid(ops, x[0], size=(1, 1, 2, 2)), "^affine_grid at .*axis 0 must have 1"),
    ],
)
def test_errors(call: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        opstage.run(call, np.ones((2, 2, 3, 4)), options=FLOAT64)
