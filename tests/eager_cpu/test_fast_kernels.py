"""Compiled kernels against the NumPy kernels and decompositions that they replace, on larger and odder arrays.

The samples of the conformance suite are small; here vector instructions have whole registers to fill and a rest, rows
are long, arrays are strided, read-only, unaligned or empty, and numbers are infinite or not numbers at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from opstage.interpreters.eager_cpu import NumpyOps
from opstage.interpreters.eager_cpu.kernels import kernel_table
from opstage.ops.catalogue import primitives
from opstage.ops.errors import RangeError
from opstage.options import Options

PRIMITIVES = primitives()
EDGES = [np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-30, -1e-30, 20.0, -20.0, 87.0, -87.0, 100.0, -100.0, 1e4, -1e4, 1e20]
BITWISE = (0.0, 0.0)


class Case(NamedTuple):
    """One call: `operands` from a generator, floats in float64; None for an operand that is not there."""

    op: str
    label: str
    operands: Callable[[np.random.Generator], tuple[Any, ...]]
    static: dict[str, Any]
    float32: tuple[float, float] = (1e-5, 1e-5)
    float64: tuple[float, float] = (1e-12, 1e-12)

    @property
    def id(self) -> str:
        return f"{self.op} {self.label}"

    @property
    def is_quick(self) -> bool:
        """Whether it is one of the quick suite: of attention over several blocks, with both masks at once and none."""
        masks = {self.static.get("has_mask"), self.static.get("causal")}
        return "600 520" not in self.label or (len(masks) == 1 and "(1, 520)" not in self.label)


def normal(*shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: tuple(rng.standard_normal(shape) for shape in shapes)


def scaled(by: float, *shapes: tuple[int, ...]) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    return lambda rng: tuple(by * rng.standard_normal(shape) for shape in shapes)


def elementwise(op: str, count: int, **static: Any) -> list[Case]:
    shapes: list[tuple[int, ...]] = [(), (0,), (1,), (37,), (5, 0, 3), (67, 129)]
    plain = [Case(op, str(shape), scaled(3.0, *[shape] * count), static) for shape in shapes]
    # Not inf for g where the slope is about to vanish: one form may underflow to 0 · inf and the other not.
    pairs = [(x, g) for x in EDGES for g in (1.0, -2.0)] + [(x, g) for x in (0.5, -0.5) for g in EDGES]
    edges = (np.array(EDGES),) if count == 1 else tuple(np.array(pairs).T)
    return [*plain, Case(op, "edges", lambda rng: edges, static)]


def along_rows(op: str, count: int) -> list[Case]:
    loose: Any = {"float32": (1e-4, 1e-4)} if count == 2 else {}  # a difference of sums
    last: list[tuple[int, ...]] = [(1,), (3, 1), (0, 5), (70, 10), (9, 261), (3, 5, 64)]
    cases = [
        Case(op, f"{shape} axis {axis}", scaled(2.0, *[shape] * count), {"axis": axis}, **loose)
        for shape, axis in [*((shape, len(shape) - 1) for shape in last), ((33, 7), 0), ((3, 40, 5), 1)]
    ]
    rows = np.tile(np.linspace(-3, 3, 70), (len(EDGES) + 1, 1))
    for i, edge in enumerate(EDGES):
        rows[i, (7 * i) % 70] = edge
    rows[-1] = -np.inf
    return [*cases, Case(op, "edges", lambda rng: (rows,) * count, {"axis": 1}, **loose)]


def norm_statistics(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[Any, Any]:
    return rng.standard_normal(shape), rng.uniform(0.5, 2.0, shape)


def products() -> list[Case]:
    """Small ones, which NumPy computes, and large ones, which the pool does; rows fewer than workers, and empty."""
    sizes = [(0, 3, 4), (3, 0, 4), (5, 3, 4), (1, 1500, 1500), (2200, 1, 1000), (230, 150, 70), (3, 900, 901)]
    loose: Any = {"float32": (1e-4, 1e-3), "float64": (1e-12, 1e-11)}  # sums of a thousand products
    cases = [Case("matmul", f"{m} {n} {k}", normal((m, k), (k, n)), {}, **loose) for m, n, k in sizes]
    for lead, n, k in [((120,), 150, 130), ((3, 70), 130, 150), ((), 1500, 1500), ((2, 0), 4, 5)]:
        operands = [(n, k), (n,), (*lead, k)]
        cases.append(Case("linear", f"{lead} {n} {k} bias", normal(*operands), {"has_bias": True}, **loose))
        cases.append(Case("linear", f"{lead} {n} {k}", normal(operands[0], operands[2]), {"has_bias": False}, **loose))
    return cases


def row_norms() -> list[Case]:
    cases = []
    for shape in [(7,), (1, 1), (0, 6), (130, 64), (3, 5, 77)]:
        d, kept = shape[-1], (*shape[:-1], 1)
        for gamma in (True, False):
            vector = [(d,)] if gamma else []
            flags = {"has_gamma": gamma, "has_beta": gamma}
            cases += [
                Case("layer_norm", f"{shape} {gamma}", normal(shape, *vector * 2), {**flags, "eps": 1e-5}),
                Case("rms_norm", f"{shape} {gamma}", normal(shape, *vector), {"has_gamma": gamma, "eps": 1e-5}),
                Case(
                    "layer_norm_grad",
                    f"{shape} {gamma}",
                    lambda rng, v=vector, s=shape, k=kept: (
                        rng.standard_normal(s),
                        *(rng.standard_normal(w) for w in v),
                        *norm_statistics(rng, k),
                        rng.standard_normal(s),
                    ),
                    {"has_gamma": gamma},
                    float32=(1e-4, 1e-4),
                    float64=(1e-11, 1e-11),
                ),
                Case(
                    "rms_norm_grad",
                    f"{shape} {gamma}",
                    lambda rng, v=vector, s=shape, k=kept: (
                        rng.standard_normal(s),
                        *(rng.standard_normal(w) for w in v),
                        norm_statistics(rng, k)[1],
                        rng.standard_normal(s),
                    ),
                    {"has_gamma": gamma},
                    float32=(1e-4, 1e-4),
                    float64=(1e-11, 1e-11),
                ),
            ]
    edges = np.tile(np.linspace(-3, 3, 70), (4, 1))
    edges[0, 3], edges[1, 69], edges[2, 0] = np.nan, np.inf, -np.inf
    cases.append(
        Case("layer_norm", "edges", lambda rng: (edges,), {"has_gamma": False, "has_beta": False, "eps": 1e-5})
    )
    return cases


def plane_norms() -> list[Case]:
    cases = []
    loose: Any = {"float32": (1e-4, 1e-4), "float64": (1e-11, 1e-11)}
    for shape, axis in [((6, 5, 7, 9), 1), ((4, 3, 2), 1), ((5, 33), 0), ((33, 6), 1), ((2, 3, 4, 5), 2)]:
        c = (shape[axis],)
        for gamma in (True, False):
            vector = [c] if gamma else []
            flags = {"has_gamma": gamma, "has_beta": gamma, "channel_axis": axis, "eps": 1e-5}
            cases += [
                Case("batch_norm", f"{shape} {axis} {gamma}", normal(shape, *vector * 2), flags),
                Case(
                    "batch_norm_eval",
                    f"{shape} {axis} {gamma}",
                    lambda rng, v=vector, s=shape, c=c: (
                        rng.standard_normal(s),
                        *(rng.standard_normal(w) for w in v * 2),
                        *norm_statistics(rng, c),
                    ),
                    flags,
                ),
                Case(
                    "batch_norm_grad",
                    f"{shape} {axis} {gamma}",
                    lambda rng, v=vector, s=shape, c=c: (
                        rng.standard_normal(s),
                        *(rng.standard_normal(w) for w in v),
                        *norm_statistics(rng, c),
                        *(rng.standard_normal(w) for w in (s, c, c)),
                    ),
                    {"has_gamma": gamma, "channel_axis": axis},
                    **loose,
                ),
            ]
    for shape, groups in [((3, 6, 5, 7), 2), ((2, 4, 9), 4), ((5, 6), 3), ((0, 4, 9), 2), ((2, 6, 1, 3), 1)]:
        flags = {"has_gamma": True, "has_beta": True, "groups": groups, "eps": 1e-5}
        channels = (shape[1],)
        cases += [
            Case("group_norm", f"{shape} {groups}", normal(shape, channels, channels), flags),
            Case(
                "group_norm_grad",
                f"{shape} {groups}",
                lambda rng, s=shape, k=groups, c=channels: (
                    rng.standard_normal(s),
                    rng.standard_normal(c),
                    *norm_statistics(rng, (s[0], k)),
                    rng.standard_normal(s),
                ),
                {"has_gamma": True, "groups": groups},
                **loose,
            ),
        ]
    return cases


def cross_entropies() -> list[Case]:
    cases = []
    for shape, positions in [((7,), ()), ((1, 1), (1,)), ((65, 10), (65,)), ((9, 300), (9,)), ((4, 5, 6), (4, 6))]:
        for reduction in ("mean", "sum", "none"):
            for smoothing in (0.0, 0.1):
                static = {"reduction": reduction, "ignore_index": -100, "label_smoothing": smoothing}
                classes = shape[1] if len(shape) > 1 else shape[0]
                kept = (shape[0], 1, *shape[2:]) if len(shape) > 1 else (1,)

                def operands(
                    rng: np.random.Generator, s: Any = shape, p: Any = positions, c: int = classes
                ) -> tuple[Any, ...]:
                    labels = rng.integers(0, c, p).astype(np.int32)
                    if p and p[0] > 5:
                        labels[2] = -100
                    return 3 * rng.standard_normal(s), labels

                def with_cotangent(
                    rng: np.random.Generator, f: Any = operands, k: Any = kept, r: str = reduction
                ) -> tuple[Any, ...]:
                    logits, labels = f(rng)
                    return (
                        logits,
                        labels,
                        3 + rng.random(k),
                        3 + rng.random(k),
                        rng.standard_normal(labels.shape if r == "none" else ()),
                    )

                label = f"{shape} {reduction} {smoothing}"
                cases.append(Case("cross_entropy", label, operands, static))
                cases.append(Case("cross_entropy_grad", label, with_cotangent, static))
    static = {"reduction": "none", "ignore_index": 3, "label_smoothing": 0.0}
    edges = np.tile(np.linspace(-3, 3, 70), (5, 1))
    edges[0, 9], edges[1, 9], edges[2, 9], edges[3, 3] = np.nan, np.inf, -np.inf, np.nan
    labels = np.array([0, 1, 9, 3, 69])
    cases.append(Case("cross_entropy", "edges", lambda rng: (edges, labels), static))
    cases.append(
        Case(
            "cross_entropy_grad",
            "edges",
            lambda rng: (edges, labels, np.ones((5, 1)), np.ones((5, 1)), np.ones(5)),
            static,
        )
    )
    return cases


def attentions() -> list[Case]:
    cases = []
    for heads, n, m in [
        ((), 1, 1),
        ((2, 3), 17, 70),
        ((2,), 70, 17),
        ((1, 2), 130, 130),
        ((0,), 3, 4),
        ((2,), 600, 520),
    ]:
        q, k, v = (*heads, n, 8), (*heads, m, 8), (*heads, m, 5)
        for causal in (False, True):
            flags = {"has_mask": False, "causal": causal}
            name = f"{heads} {n} {m} {causal}"
            cases.append(Case("scaled_dot_product_attention", name, normal(q, k, v), flags))
            for mask_shape in ((n, m), (1, m)):
                cases.append(
                    Case(
                        "scaled_dot_product_attention",
                        f"{name} {mask_shape}",
                        lambda rng, s=(q, k, v), w=mask_shape: (
                            *(rng.standard_normal(shape) for shape in s),
                            rng.random(w) < 0.4,
                        ),
                        {"has_mask": True, "causal": causal},
                    )
                )
            for mask in (None, (n, m)):

                def kept(rng: np.random.Generator, s: Any = (q, k, v), w: Any = mask) -> tuple[Any, ...]:
                    x, y, z = (rng.standard_normal(shape) for shape in s)
                    allowed = () if w is None else (rng.random(w) < 0.4,)
                    peak, total = (c + rng.random((*x.shape[:-1], 1)) for c in (0, z.shape[-2]))
                    return x, y, z, *allowed, peak, total, rng.standard_normal((*x.shape[:-1], z.shape[-1]))

                static = {"has_mask": mask is not None, "causal": causal}
                cases.append(Case("scaled_dot_product_attention_grad", f"{name} {mask}", kept, static, (1e-4, 1e-4)))

                def biased(rng: np.random.Generator, made: Any = kept, w: tuple[int, ...] = (n, m)) -> tuple[Any, ...]:
                    operands = made(rng)
                    return *operands[:3], rng.standard_normal(w), *operands[3:]

                cases.append(Case("biased_attention_grad", f"{name} {mask}", biased, static, (1e-4, 1e-4)))
                cases.append(
                    Case(
                        "biased_attention",
                        f"{name} {mask}",
                        lambda rng, made=biased, masked=mask is not None: made(rng)[: 5 if masked else 4],
                        static,
                    )
                )
    return cases


def scatters() -> list[Case]:
    def rows(*shape: int, updates: tuple[int, ...], low: int, high: int, dtype: Any = np.int64) -> Any:
        return lambda rng: (
            rng.standard_normal(shape),
            rng.standard_normal((*updates, *shape[1:])),
            rng.integers(low, high, updates).astype(dtype),
        )

    def windows(planes: tuple[int, ...], spatial: tuple[int, ...], counts: tuple[int, ...]) -> Any:
        return lambda rng: (
            rng.standard_normal((*planes, *counts)),
            rng.integers(0, int(np.prod(spatial)), (*planes, *counts)),
        )

    def gathered(rng: np.random.Generator) -> tuple[Any, ...]:
        return rng.standard_normal((3, 5, 8, 9)), rng.integers(0, 72, (3, 5, 4, 4))

    window = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    line = {"kernel": (3,), "stride": (2,), "padding": (1,)}
    exact: Any = {"float32": BITWISE, "float64": BITWISE}
    raising, zeroing = {"mode": "raise"}, {"mode": "zero"}
    return [
        Case(
            "gather_rows",
            "packed",
            lambda rng: (rng.standard_normal((40, 33)), rng.integers(0, 40, 90)),
            raising,
            **exact,
        ),
        Case(
            "gather_rows",
            "view",
            lambda rng: (rng.standard_normal((33, 40)).T, rng.integers(0, 40, 90)),
            raising,
            **exact,
        ),
        Case(
            "gather_rows",
            "zero",
            lambda rng: (rng.standard_normal((33, 9)).T, rng.integers(-5, 14, 90)),
            zeroing,
            **exact,
        ),
        Case("scatter_add_rows", "many", rows(40, 33, updates=(300,), low=0, high=40), raising, **exact),
        Case(
            "scatter_add_rows", "int32", rows(9, 3, 5, updates=(50,), low=0, high=9, dtype=np.int32), raising, **exact
        ),
        Case("scatter_add_rows", "zero", rows(9, 35, updates=(90,), low=-5, high=14), zeroing, **exact),
        Case("scatter_add_rows", "no rows", rows(0, 5, updates=(4,), low=0, high=3), zeroing, **exact),
        Case("scatter_add_rows", "no updates", rows(4, 5, updates=(0,), low=0, high=3), raising, **exact),
        Case("scatter_add_rows", "no columns", rows(4, 0, updates=(3,), low=0, high=4), raising, **exact),
        Case("max_pool_scatter", "planes", windows((3, 5), (8, 9), (4, 4)), {"shape": (8, 9), **window}, **exact),
        Case("max_pool_scatter", "lines", windows((7,), (90,), (45,)), {"shape": (90,), **line}, **exact),
        Case("max_pool_scatter", "empty", windows((0, 5), (8, 9), (4, 4)), {"shape": (8, 9), **window}, **exact),
        Case("max_pool_gather", "planes", gathered, window, **exact),
    ]


def convolutions() -> list[Case]:
    def window(stride: int, padding: int, dilation: int, groups: int) -> dict[str, Any]:
        return {
            "stride": (stride,) * 2, "padding": (padding,) * 2, "dilation": (dilation,) * 2, "groups": groups
        }  # fmt: skip

    plain, odd = window(1, 1, 1, 1), window(2, 1, 2, 2)
    kernel, x, y = (8, 4, 3, 3), (3, 4, 20, 19), (3, 8, 20, 19)
    odd_kernel, odd_x, odd_y = (6, 2, 3, 2), (5, 4, 21, 20), (5, 6, 10, 10)
    kept, dropped = {"output_padding": (0, 0)}, {"output_padding": (0, 1)}
    loose: Any = {"float32": (1e-4, 1e-4)}
    return [
        Case("conv", "plain", normal(kernel, x), {**plain, "has_bias": False}, **loose),
        Case("conv", "bias", normal(kernel, (8,), x), {**plain, "has_bias": True}, **loose),
        Case("conv", "odd", normal(odd_kernel, (6,), odd_x), {**odd, "has_bias": True}, **loose),
        Case("conv", "one image", normal(kernel, x[1:]), {**plain, "has_bias": False}, **loose),
        Case("conv", "no image", normal(kernel, (0, *x[1:])), {**plain, "has_bias": False}, **loose),
        Case("conv_transpose", "plain", normal(kernel, y), {**plain, **kept, "has_bias": False}, **loose),
        Case("conv_transpose", "bias", normal(kernel, (4,), y), {**plain, **kept, "has_bias": True}, **loose),
        Case("conv_transpose", "odd", normal(odd_kernel, (4,), odd_y), {**odd, **dropped, "has_bias": True}, **loose),
        Case("conv_transpose", "one image", normal(kernel, y[1:]), {**plain, **kept, "has_bias": False}, **loose),
        Case("conv_kernel_grad", "plain", normal(x, y), {**plain, "kernel": (3, 3)}, **loose),
        Case("conv_kernel_grad", "odd", normal(odd_x, odd_y), {**odd, "kernel": (3, 2)}, **loose),
        Case("conv_kernel_grad", "one image", normal(x[1:], y[1:]), {**plain, "kernel": (3, 3)}, **loose),
    ]


def pools() -> list[Case]:
    def ties(*shape: int) -> Callable[[np.random.Generator], tuple[Any, ...]]:
        return lambda rng: (rng.choice([-np.inf, 0.0, 1.0, np.nan], shape, p=[0.4, 0.3, 0.2, 0.1]),)

    halves: dict[str, Any] = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0)}
    overlapping: dict[str, Any] = {"kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}
    exact: Any = {"float32": BITWISE, "float64": BITWISE}
    every, inside = {"count_include_pad": True}, {"count_include_pad": False}
    return [
        Case("max_pool", "halves", ties(3, 5, 16, 70), halves, **exact),
        Case("max_pool", "overlapping", ties(4, 17, 35), overlapping, **exact),
        Case("max_pool", "empty", ties(0, 4, 8, 8), halves, **exact),
        Case("avg_pool", "halves", normal((3, 5, 16, 70)), {**halves, **every}),
        Case("avg_pool", "overlapping", normal((4, 17, 35)), {**overlapping, **inside}),
        Case("avg_pool_grad", "halves", normal((3, 5, 8, 35)), {"shape": (17, 70), **halves, **every}),
        Case("avg_pool_grad", "overlapping", normal((4, 9, 36)), {"shape": (17, 35), **overlapping, **inside}),
    ]


def draws() -> list[Case]:
    cases = []
    for shape in ((), (0,), (5,), (33, 1000)):
        for site in (0, 2**64 - 1):
            static = {"shape": shape, "seed": 2**63 + 5, "site": site}
            steps = lambda rng: (np.array(7),)  # noqa: E731
            probability = lambda rng: (np.array(0.7), np.array(7))  # noqa: E731
            for dtype in ("float32", "float64"):
                label = f"{shape} {site} {dtype}"
                cases.append(Case("rand_uniform", label, steps, {**static, "dtype": dtype}, BITWISE, BITWISE))
            cases.append(Case("bernoulli_mask", f"{shape} {site}", probability, static, BITWISE, BITWISE))
    return cases


OF_ONE: dict[str, dict[str, Any]] = {
    **{op: {} for op in ("expm1", "log1p", "tan", "asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh")},
    **{op: {} for op in ("selu", "hardsigmoid", "hardswish", "mish", "log_sigmoid", "softsign", "tanhshrink")},
    **{op: {} for op in ("isnan", "isinf", "isfinite", "ceil", "trunc", "sign")},
    "leaky_relu": {"negative_slope": 0.2},
    "elu": {"alpha": 1.3},
    "celu": {"alpha": 0.7},
    "hardtanh": {"lo": -0.5, "hi": 1.0},
    "hardshrink": {"width": 0.5},
    "softshrink": {"width": 0.5},
    "threshold": {"threshold": 0.5, "value": 7.0},
}

CASES = [
    *elementwise("sigmoid", 1),
    *elementwise("erf", 1),
    *elementwise("sqrt", 1),
    *elementwise("inv", 1),
    *elementwise("silu", 1),
    *elementwise("gelu", 1, approximate="tanh"),
    *elementwise("gelu", 1, approximate="none"),
    *elementwise("relu", 1),
    *elementwise("relu_grad", 2),
    *elementwise("tanh_grad", 2),
    *elementwise("sigmoid_grad", 2),
    *elementwise("silu_grad", 2),
    *elementwise("gelu_grad", 2, approximate="tanh"),
    *elementwise("gelu_grad", 2, approximate="none"),
    *[case for op in OF_ONE for case in elementwise(op, 1, **OF_ONE[op])[:2]],
    *elementwise("atan2", 2),
    *elementwise("fmod", 2),
    Case("argmin", "rows", normal((7, 37)), {"axis": 1, "keepdims": False}),
    Case("reduce_min", "rows", normal((7, 37)), {"axes": (1,), "keepdims": False}),
    *[
        Case(op, "rows", lambda rng: (rng.random((7, 37)) < 0.1,), {"axes": (1,), "keepdims": False})
        for op in ("reduce_any", "reduce_all")
    ],
    *[Case(op, "masks", lambda rng: tuple(rng.random((2, 37)) < 0.5), {}) for op in ("logical_or", "logical_xor")],
    *[
        Case("select", str(shape), lambda rng, shape=shape: (rng.random(shape) < 0.4, *normal(shape, shape)(rng)), {})
        for shape in [(), (1,), (0, 3), (37,), (67, 129)]
    ],
    *[
        Case("linear_recurrence", f"{shape} {axis} {reverse}", normal(shape, shape), {"axis": axis, "reverse": reverse})
        for shape, axis in [
            ((1,), 0),
            ((37,), 0),
            ((3, 0), 1),
            ((5, 1, 7), 1),
            ((4, 9, 33), 2),
            ((21, 9, 1), 1),
            ((4, 9, 33), 1),
        ]
        for reverse in (False, True)
    ],
    *[
        Case(op, f"{shape} {static}", normal(shape), static)
        for op in ("cumsum", "cumprod")
        for shape, axis in [
            ((1,), 0),
            ((37,), 0),
            ((3, 0), 1),
            ((0, 3), 1),
            ((21, 9), 1),
            ((11, 5, 3), 1),
            ((4, 9, 33), 0),
        ]
        for exclusive, reverse in [(False, False), (False, True), (True, False), (True, True)]
        for static in [{"axis": axis, "exclusive": exclusive, "reverse": reverse}]
    ],
    *[
        Case(op, str(ends), lambda rng, ends=ends, other=other: (*normal((9, 5), other)(rng), np.array(ends)), {})
        for op, other in (("grouped_matmul", (3, 5, 4)), ("grouped_outer", (9, 4)))
        for ends in ([2, 2, 9], [4, 1, 7], [-1, 20, 3])
    ],
    *along_rows("softmax", 1),
    *along_rows("log_softmax", 1),
    *along_rows("softmax_grad", 2),
    *along_rows("log_softmax_grad", 2),
    *products(),
    *row_norms(),
    *plane_norms(),
    *[Case("mse_loss", str(shape), normal(shape, shape), {}) for shape in [(1,), (37,), (67, 129), (3, 300, 40)]],
    *cross_entropies(),
    *attentions(),
    *scatters(),
    *convolutions(),
    *pools(),
    *draws(),
]


def strided(x: Any) -> Any:
    """Every other element of a larger array, the axes in the opposite order in memory."""
    if not x.ndim:
        return x
    spread = np.zeros([2 * n for n in reversed(x.shape)], x.dtype).transpose()
    spread[(slice(None, None, 2),) * x.ndim] = x
    return spread[(slice(None, None, 2),) * x.ndim]


def readonly(x: Any) -> Any:
    x = x.copy()
    x.flags.writeable = False
    return x


def unaligned(x: Any) -> Any:
    memory = np.zeros(x.nbytes + 1, np.uint8)
    moved = memory[1:].view(x.dtype).reshape(x.shape)
    moved[...] = x
    return moved


FORMS: dict[str, Callable[[Any], Any]] = {
    "packed": np.array,
    "strided": strided,
    "read-only": readonly,
    "unaligned": unaligned,
}


def bound(case: Case, operands: tuple[Any, ...], dtype: str, fast: bool) -> tuple[Any, ...]:
    interpreter = NumpyOps(Options(dtype=dtype, fast_kernels=fast))
    with np.errstate(all="ignore"):
        return interpreter.bind(PRIMITIVES[case.op], operands, case.static)


def parameters() -> list[Any]:
    """Every case in both dtypes, of which the quick suite has one and the other in turn along the cases of an op."""
    met, found = Counter[str](), []
    for case in CASES:
        for i, dtype in enumerate(("float32", "float64")):
            quick = case.is_quick and met[case.op] % 2 == i
            found.append(pytest.param(case, dtype, id=f"{case.id}-{dtype}", marks=() if quick else pytest.mark.slow))
        met[case.op] += 1
    return found


@pytest.mark.parametrize(("case", "dtype"), parameters())
def test_fast_kernel_gives_what_the_plain_one_gives(case: Case, dtype: str) -> None:
    made = case.operands(np.random.default_rng(11))
    operands = tuple(x.astype(dtype) if x.dtype.kind == "f" else x for x in map(np.asarray, made))
    expected = bound(case, operands, dtype, fast=False)
    for form, change in FORMS.items():
        changed = tuple(change(x) for x in operands)
        before = [x.copy() for x in changed]
        actual = bound(case, changed, dtype, fast=True)
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected):
            assert (type(a), a.shape, a.dtype) == (np.ndarray, e.shape, e.dtype)
            rtol, atol = getattr(case, dtype)
            np.testing.assert_allclose(a, e, rtol=rtol, atol=atol, err_msg=form)
            assert a.flags.writeable and not any(np.shares_memory(a, x) for x in changed)
        for x, y in zip(changed, before):
            np.testing.assert_array_equal(x, y, err_msg="a kernel changed an operand")


OF_OTHERS = {"multi_head_attention", "rand_normal", "smooth_max_pool"}
"""Composites whose parts no loop can do: they run op by op."""


def test_every_fast_kernel_has_a_case() -> None:
    plain, fast = kernel_table("float32", False), kernel_table("float32", True)
    compiled = {p for p in fast if fast[p] is not plain.get(p)}
    generated = {p for p in PRIMITIVES.values() if p.decomposition is not None and p not in fast}
    assert {p.name for p in compiled | generated} - OF_OTHERS == {case.op for case in CASES}


def test_integers_can_be_scattered() -> None:
    operands = (np.arange(12).reshape(4, 3), np.ones((5, 3), np.int64), np.array([3, 3, 0, 1, 3]))
    case = Case("scatter_add_rows", "", lambda rng: (), {"mode": "raise"})
    (fast,), (plain,) = (bound(case, operands, "float32", choice) for choice in (True, False))
    assert fast.dtype == np.int64 and fast.tolist() == plain.tolist()


@pytest.mark.parametrize("op", ["cross_entropy", "cross_entropy_grad"])
def test_a_label_out_of_range_is_the_same_error(op: str) -> None:
    static = {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}
    logits, labels = np.zeros((4, 3), np.float32), np.array([0, -100, 3, 1])
    more = (
        (np.zeros((4, 1), np.float32), np.ones((4, 1), np.float32), np.array(1, np.float32))
        if op.endswith("grad")
        else ()
    )
    messages = []
    for fast in (True, False):
        with pytest.raises(RangeError) as raised:
            bound(Case(op, "", lambda rng: (), static), (logits, labels, *more), "float32", fast)
        messages.append(str(raised.value))
    assert "label 3 at position (2,) is out of range" in messages[0]
    assert messages[0].partition("label")[2] == messages[1].partition("label")[2]


def test_a_place_outside_of_its_plane_is_handled_as_by_numpy() -> None:
    static = {"kernel": (2,), "stride": (2,), "padding": (0,)}
    x, index = np.arange(8, dtype=np.float32).reshape(2, 4), np.array([[0, 9], [1, 2]])
    for case, operands in [
        (Case("max_pool_gather", "", lambda rng: (), static), (x, index)),
        (Case("max_pool_scatter", "", lambda rng: (), {"shape": (4,), **static}), (x[:, :2].copy(), index)),
    ]:
        for fast in (True, False):
            with pytest.raises(IndexError):
                bound(case, operands, "float32", fast)
