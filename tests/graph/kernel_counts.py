"""What a training step of every shipped model takes, for 8 rows in float32: how many kernels of which kind.

A change of these numbers is a fusion won or lost. Look at it, then write down what this prints:

    python -m tests.graph.kernel_counts
"""

from __future__ import annotations

from typing import NamedTuple

from opstage.interpreters.graph.profile import Explanation, explain
from opstage.models import MODELS
from tests.graph.executor_common import step_of


class Counts(NamedTuple):
    """Steps of a run: loops over clusters, sums over workers, products, ops by hand, ops left to eager_cpu.

    `distinct` kernels are generated, and compiled.
    """

    fused: int
    sums: int
    products: int
    by_hand: dict[str, int]
    host: dict[str, int]
    distinct: int


def counts_of(found: Explanation) -> Counts:
    return Counts(found.fused, found.sums, found.products, found.by_hand, found.host, found.distinct)


def explained(name: str) -> Explanation:
    return explain(step_of(name))


COUNTS: dict[str, Counts] = {
    "cnn": Counts(
        fused=32,
        sums=6,
        products=6,
        by_hand={
            "conv": 4,
            "conv_kernel_grad": 4,
            "conv_transpose": 3,
            "max_pool": 2,
            "max_pool_scatter": 2,
            "rand_uniform": 1,
        },
        host={},
        distinct=13,
    ),
    "gpt": Counts(
        fused=170, sums=43, products=99, by_hand={"gather_rows": 1, "scatter_add_rows": 1}, host={}, distinct=28
    ),
    "lstm": Counts(fused=50, sums=2, products=22, by_hand={"rand_uniform": 1}, host={}, distinct=19),
    "mlp": Counts(fused=16, sums=3, products=8, by_hand={"rand_uniform": 2}, host={}, distinct=10),
    "pinn": Counts(fused=51, sums=8, products=72, by_hand={}, host={}, distinct=22),
    "resnet": Counts(
        fused=215,
        sums=60,
        products=3,
        by_hand={"conv": 10, "conv_kernel_grad": 10, "conv_transpose": 9},
        host={},
        distinct=33,
    ),
    "unet": Counts(
        fused=106,
        sums=22,
        products=0,
        by_hand={"conv": 13, "conv_kernel_grad": 13, "conv_transpose": 12, "max_pool": 2, "max_pool_scatter": 2},
        host={},
        distinct=20,
    ),
    "vae": Counts(fused=33, sums=7, products=20, by_hand={"rand_uniform": 1}, host={}, distinct=16),
    "vit": Counts(
        fused=135,
        sums=35,
        products=75,
        by_hand={"conv": 1, "conv_kernel_grad": 1, "rand_uniform": 6},
        host={},
        distinct=31,
    ),
}

if __name__ == "__main__":
    for name in sorted(MODELS):
        print(f"    {name!r}: {counts_of(explained(name))!r},")
