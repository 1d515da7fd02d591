"""`vmap` and `remat` on simulated CUDA: the programs of their own tests, against the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
import pytest

import opstage
from opstage import Options
from opstage.ops.trees import map_leaves
from tests.conformance.harness import leaves
from tests.transforms import test_remat, test_vmap

CUDA = Options(device="cuda")
BACKENDS = pytest.mark.parametrize("backend", ["eager", "compiled"])
CHOSEN = ("gradients", "gradients of cnns", "gradients of rnns", "choices", "while_loop", "rows of tables", "nested")


def narrow(tree: Any) -> Any:
    """Floats in float32, which is what a device has."""
    return map_leaves(lambda x: np.asarray(x, np.float32) if np.asarray(x).dtype.kind == "f" else np.asarray(x), tree)


def agree(program: Any, *args: Any, backend: str) -> None:
    found = opstage.run(program, *args, options=CUDA.replace(backend=backend))
    for a, b in zip(leaves(found), leaves(opstage.run(program, *args)), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@BACKENDS
@pytest.mark.parametrize("case", [c for c in test_vmap.CASES if c.name in CHOSEN], ids=lambda case: case.name)
def test_batches_on_a_device_are_those_of_the_cpu(case: test_vmap.Case, backend: str) -> None:
    agree(opstage.vmap(case.program, case.in_axes), *narrow(case.args), backend=backend)


@BACKENDS
def test_draws_of_examples_on_a_device_are_those_of_the_cpu(backend: str) -> None:
    agree(opstage.vmap(test_vmap.dropout), np.ones((3, 4), np.float32), backend=backend)


@BACKENDS
@pytest.mark.parametrize("program", [test_remat.block, test_remat.noisy, test_remat.nested], ids=lambda f: f.__name__)
def test_gradients_of_remat_on_a_device_are_those_of_the_cpu(program: Any, backend: str) -> None:
    args = narrow((test_remat.SMALL, test_remat.X))
    f = test_remat.loss(opstage.remat(program))
    found = opstage.value_and_grad(f, *args, options=CUDA.replace(backend=backend))
    for a, b in zip(optree.tree_leaves(found), optree.tree_leaves(opstage.value_and_grad(f, *args)), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
