"""Random programs on random meshes, spread over random numbers of processes: the bits of one process, in one order."""

from __future__ import annotations

import numpy as np
import pytest

import opstage
from opstage import Options, optim
from opstage.ops.trees import flatten
from tests.distributed.compared import assert_close
from tests.distributed.random_programs import Drawn, drawn
from tests.distributed.threads import Threads, on_processes
from tests.searches import MARKS, share

STEPS = 2
pytestmark = pytest.mark.filterwarnings("ignore:.*never reaches the loss")


def trained(case: Drawn, zero: int, bucket: str) -> list[bytes]:
    """Losses, parameters and moments after some steps, on the ranks that this process hosts."""
    how = Options(mesh=case.mesh, backend=case.backend, accumulate=case.accumulate, zero=zero, bucket_size=bucket)
    clipping = optim.clip.by_global_norm(0.5) if case.clipped else None
    trainer = opstage.scalar_trainer(case.loss, case.params(), options=how, clip=clipping)
    rule = optim.adamw(lr=0.01)
    state, losses = trainer.init_optim(rule), []
    for step in range(STEPS):
        losses.append(trainer.advance(rule, state, *case.batch(step)).loss)
    kept = flatten((losses, trainer.get_params(), [list(slots) for slots in state.slots]))[0]
    return [np.asarray(leaf).tobytes() for leaf in kept]


def holds(case: Drawn) -> None:
    """Every spread of a case has the bits of one process; all that was sent was received under the name it was sent."""
    alone = trained(case, 0, "0")
    for processes, zero, bucket in case.spread:

        def run(transport: Threads, zero: int = zero, bucket: str = bucket) -> list[bytes]:
            made = trained(case, zero, bucket)
            assert transport.left() == 0, "exchanges that nobody waits for"
            return made

        assert on_processes(processes, run) == [alone] * processes, (case, processes, zero, bucket)
        assert trained(case, zero, bucket) == alone, (case, zero, bucket)


@pytest.mark.parametrize(
    "seed, backend",
    [
        *[(seed, "eager") for seed in range(8)],
        *[(seed, "compiled") for seed in range(2)],
        *[pytest.param(seed, "eager", marks=MARKS) for seed in range(8, 8 + share(67))],
        *[pytest.param(seed, "compiled", marks=MARKS) for seed in range(2, 2 + share(21))],
    ],
)
def test_a_random_mesh_has_the_bits_of_one_process(seed: int, backend: str) -> None:
    holds(drawn(seed, backend))


@pytest.mark.parametrize("seed", [seed for seed in range(30) if drawn(seed).alike])
def test_a_random_mesh_has_the_numbers_of_one_rank(seed: int) -> None:
    case = drawn(seed)
    found = []
    for mesh in ("", case.mesh):
        how = Options(mesh=mesh, dtype="float64", accumulate=case.accumulate)
        trainer = opstage.scalar_trainer(case.loss, case.params(), options=how)
        losses = [trainer.step(0.1, *case.batch(step)) for step in range(STEPS)]
        found.append([np.asarray(leaf) for leaf in flatten((losses, trainer.get_params()))[0]])
    assert_close(*reversed(found), rtol=1e-9, atol=1e-12)
