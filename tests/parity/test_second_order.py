"""Hessian-vector products of ops that are smooth, against torch.autograd.functional.hvp, in float64."""

from __future__ import annotations

import itertools
import zlib
from typing import Any

import numpy as np
import optree
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import opstage
from opstage.options import Options
from tests.conformance.harness import is_float
from tests.parity.compare import SEED, operands
from tests.parity.twin import Case, Twin
from tests.parity.twins import TWINS

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
PER_TWIN = 6


def _is_smooth(case: Case) -> bool:
    """Not at a kink, not of integers alone, not large; and not empty or with output_padding, where PyTorch's fails."""
    left_out = ("integers", "output_padding=(1", "(0,")
    return not case.edge and case.terms < 2000 and not any(text in case.name for text in left_out)


CASES = [
    (twin, case)
    for twin in TWINS
    if twin.op in SMOOTH and not twin.gradient
    for case in itertools.islice(filter(_is_smooth, twin.cases), PER_TWIN)
]


def test_every_op_named_is_compared() -> None:
    assert {twin.op for twin, _ in CASES} == set(SMOOTH)


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


@pytest.mark.parametrize("twin, case", CASES, ids=[f"{twin.op}-{case.name}" for twin, case in CASES])
def test_hessian_vector_product(twin: Twin, case: Case) -> None:
    for ours, theirs in zip(*hessian_vector_products(twin, case, Options(dtype="float64"), "cpu")):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.sqrt(case.terms))
