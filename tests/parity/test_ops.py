"""Ops against PyTorch on every interpreter that executes: values, gradients, views, second derivatives."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import optree
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import opstage
from opstage.options import Options
from tests.conformance.harness import EXECUTING, is_float
from tests.parity.compare import DTYPES, SEED, assert_equal_outcomes, on_opstage, on_torch, operands
from tests.parity.twin import Arrays, Case, Twin
from tests.parity.twins import TWINS

CASES = [(twin, case) for twin in TWINS for case in twin.cases]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("twin, case", CASES, ids=[f"{twin.op}-{case.name}" for twin, case in CASES])
def test_agrees_with_pytorch(twin: Twin, case: Case, dtype: str) -> None:
    args = operands(twin, case, dtype)
    expected, seeds = on_torch(twin, case, args, dtype)
    for interpreter in EXECUTING:
        actual = on_opstage(interpreter, twin, case, args, seeds, dtype)
        try:
            assert_equal_outcomes(actual, expected, case, dtype)
        except AssertionError as error:
            raise AssertionError(f"{twin.op}, {case.name}, on {interpreter} in {dtype}: {error}") from None


# Views, transposed in memory or repeated with a stride of 0, give what contiguous operands give -----------------------

PER_TWIN = 4


def _is_viewed(x: Any) -> bool:
    return x is not None and not isinstance(x, list) and is_float(x) and np.ndim(x) >= 2 and np.size(x) > 0


def _transposed(case: Case, twin: Twin) -> tuple[Twin, Case]:
    """Operands come with their axes reversed, and the program turns them round."""

    def arrays(rng: Any) -> tuple[Any, ...]:
        return tuple(np.array(np.asarray(x).T) if _is_viewed(x) else x for x in case.arrays(rng))

    def turned(ops: Any, *refs: Any, **static: Any) -> Any:
        return twin.apply(
            ops, *_each(refs, lambda x: ops.permute(x, axes=tuple(reversed(range(len(x.shape)))))), **static
        )

    def turned_in_torch(*tensors: Any, **static: Any) -> Any:
        return twin.torch(*_each(tensors, lambda x: x.permute(*reversed(range(x.ndim)))), **static)

    return _made(twin, case, arrays, turned, turned_in_torch, "transposed", case.terms)


def _repeated(case: Case, twin: Twin) -> tuple[Twin, Case]:
    """Operands come as their first row, and the program repeats it."""
    shapes = [np.shape(x) for x in case.arrays(np.random.default_rng(0)) if _is_viewed(x)]

    def arrays(rng: Any) -> tuple[Any, ...]:
        return tuple(np.array(x[:1]) if _is_viewed(x) else x for x in case.arrays(rng))

    def spread(ops: Any, *refs: Any, **static: Any) -> Any:
        given = iter(shapes)
        return twin.apply(ops, *_each(refs, lambda x: ops.broadcast_to(x, shape=next(given))), **static)

    def spread_in_torch(*tensors: Any, **static: Any) -> Any:
        given = iter(shapes)
        return twin.torch(*_each(tensors, lambda x: x.expand(next(given))), **static)

    terms = case.terms * max(shape[0] for shape in shapes)
    return _made(twin, case, arrays, spread, spread_in_torch, "repeated", terms)


def _each(operands: tuple[Any, ...], view: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The same operands that `_is_viewed`, as refs or tensors."""

    def viewed(x: Any) -> Any:
        whole = x is not None and not isinstance(x, list) and str(x.dtype).removeprefix("torch.").startswith("float")
        return view(x) if whole and len(x.shape) >= 2 and 0 not in x.shape else x

    return tuple(viewed(x) for x in operands)


def _made(twin: Twin, case: Case, arrays: Arrays, call: Any, torch: Any, how: str, terms: int) -> tuple[Twin, Case]:
    return Twin(twin.op, torch, (), call, twin.gradient), Case(f"{case.name} {how}", arrays, case.static, terms)


def _made_of(view: Callable[[Case, Twin], tuple[Twin, Case]], keep: Callable[[Twin], bool]) -> list[tuple[Twin, Case]]:
    found = []
    for twin in filter(keep, TWINS):
        usable = (c for c in twin.cases if not c.edge and any(map(_is_viewed, c.arrays(np.random.default_rng(0)))))
        found += [view(case, twin) for case in itertools.islice(usable, PER_TWIN)]
    return found


# Not for what divides by a variance, which equal rows lack, nor with attention weights, which would be of other rows.
# Equal rows make a matrix that no equation is solved by, and ties, of which PyTorch's gradient takes any one.
_ROWS_DIFFER = (
    "norm",
    "max_pool_gather",
    "muon",
    "attention_grad",
    "solve",
    "cholesky",
    "eigh",
    "qr",
    "svd",
    "cofactor",
    "inverse",
    "median",
    "top_k",
)
VIEWS = [
    *_made_of(_transposed, lambda twin: True),
    *_made_of(_repeated, lambda twin: not any(part in twin.op for part in _ROWS_DIFFER)),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("twin, case", VIEWS, ids=[f"{twin.op}-{case.name}" for twin, case in VIEWS])
def test_views_agree_with_pytorch(twin: Twin, case: Case, dtype: str) -> None:
    args = operands(twin, case, dtype)
    expected, seeds = on_torch(twin, case, args, dtype)
    for interpreter in EXECUTING:
        assert_equal_outcomes(on_opstage(interpreter, twin, case, args, seeds, dtype), expected, case, dtype)


# Second derivatives ---------------------------------------------------------------------------------------------------

# fmt: off
SMOOTH = (
    "mul", "div", "pow", "inv", "sqrt", "exp", "log", "sin", "cos", "tanh", "sigmoid", "softplus", "erf", "silu",
    "gelu", "select", "reduce_sum", "reduce_mean", "softmax", "log_softmax", "broadcast_to", "permute", "concat",
    "slice", "pad", "gather_rows", "scatter_add_row", "matmul", "bmm", "linear", "conv", "conv_transpose", "conv2d",
    "avg_pool", "smooth_max_pool", "max_pool", "layer_norm", "rms_norm", "group_norm", "batch_norm",
    "batch_norm_eval", "scaled_dot_product_attention", "multi_head_attention", "mse_loss", "cross_entropy",
    "derived.einsum", "derived.logsumexp",
)
# fmt: on
"""max_pool and select are linear between their kinks; their operands here are not at one."""
SMOOTH_PER_TWIN = 6


def _is_smooth(case: Case) -> bool:
    """Not at a kink, not of integers alone, not large; and not empty or with output_padding, where PyTorch's fails."""
    left_out = ("integers", "output_padding=(1", "(0,")
    return not case.edge and case.terms < 2000 and not any(text in case.name for text in left_out)


SMOOTH_CASES = [
    (twin, case)
    for twin in TWINS
    if twin.op in SMOOTH and not twin.gradient
    for case in itertools.islice(filter(_is_smooth, twin.cases), SMOOTH_PER_TWIN)
]


def test_every_op_named_is_compared() -> None:
    assert {twin.op for twin, _ in SMOOTH_CASES} == set(SMOOTH)


def hessian_vector_products(twin: Twin, case: Case, options: Options, torch_device: str) -> tuple[list[Any], list[Any]]:
    """Of Σ w·f(x)², which has a second derivative where f is linear too: ours, and PyTorch's in float64."""
    args = operands(twin, case, options.dtype)
    rng = np.random.default_rng([SEED, zlib.crc32(f"{twin.op}-{case.name}".encode())])
    v = optree.tree_map(lambda x: rng.standard_normal(x.shape).astype(options.dtype) if is_float(x) else None, args)
    weights: list[Any] = []

    def tensor(array: Any) -> torch.Tensor:
        array = np.array(array)
        return torch.from_numpy(array.astype(np.float64) if is_float(array) else array).to(torch_device)

    leaves, structure = optree.tree_flatten(args)
    floats = [tensor(x) for x in leaves if is_float(x)]
    directions = [tensor(x) for x in optree.tree_leaves(v)]

    def on_torch(*tensors: torch.Tensor) -> torch.Tensor:
        given = iter(tensors)
        whole = [next(given) if is_float(x) else tensor(x) for x in leaves]
        outputs = optree.tree_leaves(twin.torch(*optree.tree_unflatten(structure, whole), **case.static))
        weights[:] = [np.random.default_rng(i).standard_normal(out.shape) for i, out in enumerate(outputs)]
        weights[:] = [np.asarray(w, options.dtype) for w in weights]
        return torch.stack([(tensor(w) * out * out).sum() for w, out in zip(weights, outputs)]).sum()

    with sdpa_kernel(SDPBackend.MATH), torch.device(torch_device):  # the one with a second derivative
        _, expected = torch.autograd.functional.hvp(on_torch, tuple(floats), tuple(directions))

    def program(ops: Any, *refs: Any) -> Any:
        total = ops.full(shape=(), value=0.0)
        for w, out in zip(weights, optree.tree_leaves(twin.apply(ops, *refs, **case.static))):
            total = ops.add(total, ops.sum(ops.mul(ops.const(w), ops.mul(out, out))))
        return total

    actual = optree.tree_leaves(opstage.hvp(program, args, v, options=options))
    assert len(actual) == len(expected)
    return actual, [theirs.cpu().numpy() for theirs in expected]


@pytest.mark.parametrize("twin, case", SMOOTH_CASES, ids=[f"{twin.op}-{case.name}" for twin, case in SMOOTH_CASES])
def test_hessian_vector_product(twin: Twin, case: Case) -> None:
    for ours, theirs in zip(*hessian_vector_products(twin, case, Options(dtype="float64"), "cpu")):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.sqrt(case.terms))
