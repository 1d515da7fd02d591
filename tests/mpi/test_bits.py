"""The same program on 1, 2 and 4 processes has the same bits, eager and compiled, over Open MPI and MPICH."""

from __future__ import annotations

import pytest

from tests.mpi.started import alone, ended, mpiexec, on_processes

RUNS = (
    "mlp:eager:50:data=4",
    "cnn:eager:50:data=4",
    "gpt:eager:50:data=4",
    "mlp:compiled:50:data=4",
    "cnn:compiled:50:data=4",
    "gpt:compiled:50:data=4",
    "gpt:compiled:50:data=4:3:9000",
    "gpt:compiled:50:data=4:2:60000",
    "resnet:compiled:3:data=4",
    "gpt:eager:20:data=4",
    "gpt:eager:20:data=4:2",
    "gpt:eager:20:data=4:3",
    "gpt:eager:20:data=4:0:9000",
)
LENT = (
    "mlp:compiled:50:data=2",
    "mlp:compiled:50:data=2:2",
    "mlp:compiled:50:data=2:3:9000",
    "gpt:compiled:20:data=2",
    "gpt:compiled:20:data=2:0:9000",
    "gpt:compiled:20:data=2:2:9000",
    "gpt:compiled:20:data=2:0:60000",
    "gpt:compiled:20:data=2:2:60000",
    "gpt:compiled:20:data=2:3:60000",
    "gpt:eager:10:data=2:2:60000",
)
"""On two processes, one of whose ranks reads the other one's vectors where they stand."""
BY_MPICH = RUNS[:8]
"""What is run over MPICH too: each model for 50 steps, and parts of parameters."""


@pytest.fixture(scope="module")
def of_one() -> list[str]:
    found = alone(*RUNS)
    by_run = dict(line.split() for line in found)
    assert len({by_run[f"gpt:eager:20:data=4{zero}"] for zero in ("", ":2", ":3", ":0:9000")}) == 1
    assert len({by_run[f"gpt:compiled:50:data=4{zero}"] for zero in ("", ":3:9000", ":2:60000")}) == 1
    return found


@pytest.mark.parametrize("processes", [2, 4])
def test_parameters_have_the_bits_of_one_process(processes: int, of_one: list[str]) -> None:
    done = mpiexec(processes, "tests.mpi.digests", *RUNS).well()
    assert "engine: Open\n" in done.said
    assert done.digests == of_one


@pytest.mark.parametrize("engine", ["openmpi", "mpich"])
def test_vectors_that_are_read_where_they_stand_have_the_bits_of_one_process(engine: str) -> None:
    done = mpiexec(2, "tests.mpi.digests", *LENT, engine=engine).well()
    assert done.digests == alone(*LENT)


def test_runs_at_once_on_one_host_do_not_meet() -> None:
    expected = alone(*LENT[:3])
    for each in [on_processes(2, "tests.mpi.digests", *LENT[:3]) for _ in range(3)]:
        assert ended(each).well().digests == expected


@pytest.mark.parametrize("processes", [2, 4])
def test_mpich_has_the_bits_of_open_mpi(processes: int, of_one: list[str]) -> None:
    done = mpiexec(processes, "tests.mpi.digests", *BY_MPICH, engine="mpich").well()
    assert "engine: MPICH\n" in done.said
    assert done.digests == of_one[: len(BY_MPICH)]
