"""Composites with kernels of their own: against their decompositions, at lengths around a warp's, cut into parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.compiler.codegen.formulas import FORMULAS
from opstage.compiler.gpu.memory import Tally
from opstage.interpreters import registry
from opstage.interpreters.eager_cuda import CudaOps
from opstage.interpreters.eager_cuda.kernels import KERNELS, attention, indexing, reduction
from opstage.ops.catalogue import primitives
from opstage.ops.errors import RangeError
from opstage.options import Options
from tests.conformance.harness import SEED, assert_close, inputs, leaves, program_of
from tests.conformance.test_derivatives import scalarised
from tests.conformance.test_values import upcast
from tests.samples import SAMPLES
from tests.samples.sample import Sample

CUDA = Options(device="cuda")
FLOAT64 = Options(dtype="float64")

WHOLE = {"flatten", "squeeze", "unsqueeze", "swap_adjacent_at_depth", "stack"} | {
    "multi_head_attention",
    "biased_attention",
    "biased_attention_grad",
    "smooth_max_pool",
}
"""Composites that run by their decomposition: they move elements that a view or a core kernel moves, or spend their
time in products; so do those that gather, scatter and transpose, and the update of Muon."""

AROUND = {"reduce_min", "argmin", "reduce_any", "reduce_all", "reduce_prod", "cumprod"}
"""Composites around a core reduction or a running one, which no generated loop takes in."""

ANSWERED = {"isinf", "isfinite"}
"""Of integers the answer is a constant, which is no loop over them."""

NATIVE = {
    name
    for name, p in primitives().items()
    if not (
        p.core
        or name in WHOLE | AROUND | ANSWERED
        or name.startswith(("transpose", "gather", "scatter", "muon", "grouped"))
    )
}


def decomposed(options: Options) -> CudaOps:
    """Kernels for core ops alone."""
    return CudaOps(options, kernels={p: kernel for p, kernel in KERNELS.items() if p.core}, generates=False)


def test_what_has_a_kernel_by_hand() -> None:
    """Besides core ops: what gathers, attends, pools, draws. All else is generated, of one element by its formula."""
    by_hand = {p.name for p in KERNELS if not p.core and p not in FORMULAS}
    assert by_hand == {
        *("linear", "scaled_dot_product_attention", "scaled_dot_product_attention_grad"),
        *("bernoulli_mask", "rand_normal"),
        *("sum", "reduce_mean"),
    }


def uncomputed(options: Options) -> CudaOps:
    return CudaOps(options, Tally())


def test_what_runs_by_decomposition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._OWN, ("eager", "cuda"), "tests.cuda.test_fused:uncomputed")
    found, decompose = set(), CudaOps.decompose

    def noting(interpreter: CudaOps, primitive: Any, *more: Any) -> Any:
        found.add(primitive.name)
        return decompose(interpreter, primitive, *more)

    monkeypatch.setattr(CudaOps, "decompose", noting)
    for sample in SAMPLES:
        args = inputs(sample, "float32")
        if sample.op in NATIVE and all(x.size for x in leaves(args)):
            opstage.run(program_of(sample), *args, options=CUDA)
    assert found.isdisjoint(NATIVE)


@pytest.mark.parametrize("sample", [s for s in SAMPLES if s.op in NATIVE], ids=lambda s: s.id)
def test_kernels_agree_with_decompositions(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    args = inputs(sample, "float32")
    rng = np.random.default_rng(SEED)
    native = opstage.run(program_of(sample), *args, options=CUDA)
    weights = [rng.standard_normal(x.shape).astype(np.float32) for x in leaves(native) if x.dtype.kind == "f"]
    everything = tuple(range(len(args)))

    def gradient() -> Any:
        if not sample.order:
            return ()
        return opstage.value_and_grad(scalarised(sample, weights), *args, wrt=everything, options=CUDA)[1]

    native_gradient = gradient()
    monkeypatch.setitem(registry._OWN, ("eager", "cuda"), "tests.cuda.test_fused:decomposed")
    assert_close(native, opstage.run(program_of(sample), *args, options=CUDA), sample.float32, sample.id)
    assert_close(leaves(native_gradient), leaves(gradient()), (1e-4, 1e-4), f"gradient of {sample.id}")


# Lengths --------------------------------------------------------------------------------------------------------------

Program = Callable[..., Any]


def _attention(causal: bool) -> Program:
    return lambda ops, x, v, b: ops.scaled_dot_product_attention(x, x, x, causal=causal)


def _cross_entropy(**static: Any) -> Program:
    return lambda ops, x, v, b: ops.cross_entropy(x, ops.iota(shape=(3,), axis=0, dtype="int32"), **static)


def _by_places(ops: Any, x: Any) -> Any:
    return ops.reduce_sum(x, axis=-1) * ops.cast(ops.argmax(x, axis=-1), dtype=str(x.dtype))


# Of x (3, n), v (n) and b (3, n).
ROWS: dict[str, Program] = {
    "sum": lambda ops, x, v, b: ops.sum(x),
    "mean": lambda ops, x, v, b: ops.reduce_mean(x, axis=-1),
    "mean of columns": lambda ops, x, v, b: ops.reduce_mean(x, axis=0),
    "max": lambda ops, x, v, b: ops.reduce_max(x, axis=-1),
    "sums by the places of maxima": lambda ops, x, v, b: _by_places(ops, ops.concat([x, b, -x], axis=0)),
    "softmax": lambda ops, x, v, b: ops.softmax(x),
    "softmax of columns": lambda ops, x, v, b: ops.softmax(ops.transpose2d(x), axis=0),
    "log_softmax": lambda ops, x, v, b: ops.log_softmax(x),
    "log_softmax of columns": lambda ops, x, v, b: ops.log_softmax(ops.transpose2d(x), axis=0),
    "layer_norm": lambda ops, x, v, b: ops.layer_norm(x, v, v),
    "rms_norm": lambda ops, x, v, b: ops.rms_norm(x, v),
    "group_norm": lambda ops, x, v, b: ops.group_norm(ops.stack([x, b], axis=1), None, None, groups=2),
    "batch_norm": lambda ops, x, v, b: ops.batch_norm(ops.stack([x, b]), None, None)[0],
    "batch_norm of columns": lambda ops, x, v, b: ops.batch_norm(x, v, v)[0],
    "mse_loss": lambda ops, x, v, b: ops.mse_loss(x, b),
    "attention": _attention(False),
    "causal attention": _attention(True),
}
CLASSES = {
    "cross_entropy": _cross_entropy(),
    "smoothed, one ignored": _cross_entropy(label_smoothing=0.25, ignore_index=1),
    "cross_entropy of each": _cross_entropy(reduction="none"),
}


def agree(program: Program, *args: Any, wrt: tuple[int, ...] = (0, 1, 2)) -> None:
    """The values and the gradient of a weighted sum, beside float64 on the CPU."""
    rng = np.random.default_rng(SEED)
    shape = opstage.run(program, *args).shape
    weights = rng.standard_normal(shape).astype(np.float32)

    def weighted(ops: Any, *refs: Any) -> Any:
        out = program(ops, *refs)
        return ops.sum(ops.mul(out, ops.cast(ops.const(weights), dtype=ops.dtype)))

    actual, expected = (opstage.run(program, *a, options=o) for a, o in ((args, CUDA), (upcast(args), FLOAT64)))
    assert_close(actual, expected, (1e-4, 1e-4), "value")
    _, gradient = opstage.value_and_grad(weighted, *args, wrt=wrt, options=CUDA)
    _, slope = opstage.value_and_grad(weighted, *upcast(args), wrt=wrt, options=FLOAT64)
    for a, e in zip(gradient, slope, strict=True):
        scale = 1 + float(np.max(np.abs(e), initial=0))
        assert_close(a / scale, e / scale, (1e-4, 1e-4), "gradient")


def _operands(n: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(n)
    return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((3, n), (n,), (3, n)))


@pytest.mark.parametrize("n", [1, 31, 33, 1000])
@pytest.mark.parametrize("name", ROWS)
def test_rows_around_a_warp(name: str, n: int) -> None:
    agree(ROWS[name], *_operands(n))


@pytest.mark.parametrize("n", [3, 31, 33, 1000])
@pytest.mark.parametrize("name", CLASSES)
def test_classes_around_a_warp(name: str, n: int) -> None:
    agree(CLASSES[name], *_operands(n))


@pytest.mark.parametrize("keys", [1, 33, 150])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_with_a_mask(keys: int, causal: bool) -> None:
    """A query that may attend to nothing gives zeros; the mask broadcasts over the leading axes."""
    rng = np.random.default_rng(keys)
    mask = rng.random((2, 1, 4, keys)) < 0.5
    mask[:, :, 2] = False
    shapes = (2, 3, 4, 5), (2, 3, keys, 5), (2, 3, keys, 2)
    agree(
        lambda ops, q, k, v, m: ops.scaled_dot_product_attention(q, k, v, m, causal=causal),
        *(rng.standard_normal(shape).astype(np.float32) for shape in shapes),
        mask,
    )


@pytest.mark.parametrize("size", [3, 20, 70, 130])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_several_tiles(size: int, masked: bool, causal: bool) -> None:
    """Tiles that are cut off on every side, of either width; the greatest sizes are multiplied as whole matrices."""
    rng = np.random.default_rng(size)
    mask = rng.random((21, 35)) < 0.5
    mask[3] = False
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 21, size), (2, 35, size), (2, 35, 2)))
    agree(
        lambda ops, q, k, v, *m: ops.scaled_dot_product_attention(q, k, v, *m, causal=causal),
        *(q, k, v),
        *([mask] if masked else []),
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads_at_once", [1, 2, 8])
def test_attention_by_products_in_runs(
    heads_at_once: int, masked: bool, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of 7 weights are padded to 8; the last of three runs of two heads has one."""
    monkeypatch.setattr(attention, "MANY", 0)
    monkeypatch.setattr(attention, "RUN", heads_at_once * 6 * 8 * 4)
    rng = np.random.default_rng(heads_at_once)
    mask = rng.random((5, 6, 7)) < 0.5
    mask[2, 3] = False
    agree(
        lambda ops, q, k, v, *m: ops.scaled_dot_product_attention(q, k, v, *m, causal=causal),
        *(rng.standard_normal(shape).astype(np.float32) for shape in ((5, 6, 3), (5, 7, 3), (5, 7, 2))),
        *([mask] if masked else []),
    )


@pytest.mark.parametrize(("queries", "size", "columns"), [(0, 3, 2), (4, 3, 0)])
def test_attention_by_products_of_nothing(
    queries: int, size: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "MANY", 0)
    rng = np.random.default_rng(0)
    agree(
        lambda ops, q, k, v: ops.scaled_dot_product_attention(q, k, v),
        *(
            rng.standard_normal(shape).astype(np.float32)
            for shape in ((2, queries, size), (2, 5, size), (2, 5, columns))
        ),
    )


def test_large_scores_keep_their_gradient() -> None:
    """Equal scores share the weight evenly, however large: log-sum-exp alone would round that off."""
    q = np.full((1, 2), 1e3, np.float32)
    k = np.full((2, 2), 1e3, np.float32)
    v, g = np.array([[1, 0], [0, 1]], np.float32), np.array([[1, 2]], np.float32)

    def program(ops: Any, v: Any) -> Any:
        return ops.sum(ops.mul(ops.scaled_dot_product_attention(ops.const(q), ops.const(k), v), ops.const(g)))

    for options in (CUDA, Options()):
        _, gradient = opstage.value_and_grad(program, v, wrt=(0,), options=options)
        np.testing.assert_allclose(gradient[0], [[0.5, 1], [0.5, 1]], rtol=1e-6)


def test_rows_with_infinities_and_nan() -> None:
    x = np.array([[-np.inf, 1, -np.inf, 2], [np.nan, 1, 2, 3], [-np.inf] * 4, [np.inf, 1, 2, 3]], np.float32)
    wide = np.concatenate([x, np.repeat(x[:, 1:2], 60, axis=1)], axis=1)
    for case in (x, wide):
        for program in (lambda ops, x: ops.softmax(x), lambda ops, x: ops.log_softmax(x)):
            with np.errstate(invalid="ignore"):
                expected = opstage.run(program, case)
            assert_close(opstage.run(program, case, options=CUDA), expected, (1e-5, 1e-6), "softmax")


@pytest.mark.parametrize(
    ("program", "shape"),
    [
        (lambda ops, x: ops.reduce_sum(x, axis=0), (0, 3)),
        (lambda ops, x: ops.sum(x), (0,)),
        (lambda ops, x: ops.softmax(x), (0, 3)),
        (lambda ops, x: ops.layer_norm(x, None, None), (0, 3)),
        (lambda ops, x: ops.gelu(x), (2, 0)),
        (lambda ops, x: ops.linear(ops.full(shape=(2, 3), value=1.0), None, x), (0, 3)),
        (lambda ops, x: ops.linear(ops.full(shape=(2, 0), value=1.0), None, x), (4, 0)),
        (lambda ops, x: ops.reduce_mean(x, axis=1), (0, 3)),
    ],
)
def test_nothing_at_all(program: Program, shape: tuple[int, ...]) -> None:
    agree(program, np.zeros(shape, np.float32), wrt=(0,))


def test_parameters_of_a_norm_of_no_rows_have_zero_gradients() -> None:
    args = np.zeros((0, 3), np.float32), np.ones(3, np.float32), np.ones(3, np.float32)
    agree(lambda ops, x, gamma, beta: ops.layer_norm(x, gamma, beta), *args)


# Parts ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if rows and columns were long: sums of sums of parts."""
    monkeypatch.setattr(reduction, "PART_OF_ROW", 40)
    monkeypatch.setattr(reduction, "PART_OF_COLUMN", 3)
    monkeypatch.setattr(indexing, "MOST_UPDATES", 5)


@pytest.mark.parametrize(
    "name", ["sum", "mean", "max", "layer_norm", "batch_norm", "batch_norm of columns", "mse_loss"]
)
def test_long_rows_are_reduced_in_parts(name: str, short_parts: None) -> None:
    agree(ROWS[name], *_operands(1000))


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 2), (0, 1, 2), (1, 2), ()])
def test_any_axes_are_reduced_in_parts(axes: tuple[int, ...], short_parts: None) -> None:
    x = np.random.default_rng(1).standard_normal((11, 7, 4)).astype(np.float32)
    for keepdims in (False, True):
        for op in ("reduce_sum", "reduce_mean", "reduce_max"):
            agree(lambda ops, x: getattr(ops, op)(x, axis=axes, keepdims=keepdims), x, wrt=(0,))


def test_integers_are_added_in_64_bits(short_parts: None) -> None:
    x = np.full((50, 90), 2**30, np.int32)
    total = opstage.run(lambda ops, x: ops.sum(x), x, options=CUDA)
    assert (total, total.dtype) == (50 * 90 * 2**30, np.int64)


def test_updates_of_one_row_are_added_in_order(short_parts: None) -> None:
    rng = np.random.default_rng(3)
    x, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 2), (23, 2)))
    idx = rng.integers(-1, 5, 23).astype(np.int32)
    expected = x.copy()
    for i, row in enumerate(idx):
        if 0 <= row < 4:
            expected[row] += v[i]
    actual = opstage.run(lambda ops, x, v, idx: ops.scatter_add_row(x, v, idx, mode="zero"), x, v, idx, options=CUDA)
    np.testing.assert_array_equal(actual, expected)


# Labels ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5), (3,)])
def test_a_label_out_of_range_is_told_as_on_the_cpu(shape: tuple[int, ...]) -> None:
    labels = np.zeros(shape[:1] + shape[2:] if len(shape) > 1 else (), np.int64)
    labels[...] = -100
    labels[(-1,) * labels.ndim] = 3

    def program(ops: Any, x: Any, labels: Any) -> Any:
        return ops.cross_entropy(x, labels)

    messages = []
    for options in (Options(), Options(fast_kernels=False), CUDA):
        with pytest.raises(RangeError, match=r"label 3.* is out of range: logits are") as caught:
            opstage.run(program, np.ones(shape, np.float32), labels, options=options)
        messages.append(str(caught.value))
    assert len(set(messages)) == 1
