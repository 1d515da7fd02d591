"""What kernels on the CPU want."""

from __future__ import annotations

from ..lowering.target import Target

BY_HAND = frozenset(
    (
        "conv",
        "conv_transpose",
        "conv_kernel_grad",
        "max_pool",
        "max_pool_scatter",
        "max_pool_gather",
        "avg_pool",
        "avg_pool_grad",
        "gather_rows",
        "scatter_add_rows",
        "rand_uniform",
    )
)
"""Ops of `library`; every other op that has no formula is computed by eager_cpu, which reads any strides."""

CPU = Target(BY_HAND | {"scan"}, strided=True, batch_axes=2, index_checks=True, both_sums=True, few_rows=1)
