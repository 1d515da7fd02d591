"""Where compiled programs on a simulated device read and write: parts of memory, and memory that others hold too."""

from __future__ import annotations

from typing import Any

import numpy as np

import opstage
from opstage.options import Options

COMPILED = Options(device="cuda", seed=1, backend="compiled")
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)


def close(left: Any, right: Any) -> None:
    for a, b in zip(left, right, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_part_of_a_concatenation_is_read_where_it_stands() -> None:
    """By loops over elements, rows and columns, by a product, and by whoever gets a copy of it."""

    def program(ops: Any, x: Any) -> Any:
        y = ops.tanh(x)
        joined = ops.concat([x, y], axis=0)
        turned = ops.permute(y, axes=(1, 0))
        return joined, ops.exp(turned), ops.sum(y, axis=0), ops.sum(y, axis=1), ops.matmul(y, turned), turned

    close(opstage.run(program, X, options=COMPILED), opstage.run(program, X))
