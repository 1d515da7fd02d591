"""The sides of Opstage that a GPU is measured by, on a simulated one: they take the steps that the CPU takes."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import programs
from benchmarks.sides import opstage_compiled, opstage_eager
from benchmarks.workloads import Chain, Cnn, Gpt, Mlp


@pytest.mark.parametrize("side", [opstage_eager, opstage_compiled])
@pytest.mark.parametrize(
    "workload",
    (Mlp((4, 8, 3), 6), Cnn((2, 2), 4, 3, 1), Gpt(1, 2, 4, 3, 2, 5), Chain(6)),
    ids=lambda workload: type(workload).__name__,
)
def test_steps_are_those_of_the_cpu(workload: Any, side: Any) -> None:
    here, there = opstage_eager.step(workload), side.step(workload, "cuda", "tf32")
    for _ in range(2):
        assert there() == pytest.approx(here(), rel=1e-4)
    assert programs.peak_of_gpu() > 0
