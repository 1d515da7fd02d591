"""Runs that `srun` starts, by PMIx with Open MPI and by PMI-2 with MPICH, where Slurm is installed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mpi.slurm import Slurm, cluster, missing
from tests.mpi.started import PATIENCE, by_mpich, ended, opstage
from tests.mpi.test_launch import COMMAND, TRAIN, weights

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "Slurm runs")

MPICH = ("env", *[f"{name}={value}" for name, value in by_mpich().items()])
ENGINES = {"pmix": (), "pmi2": MPICH}
"""What joins the tasks, and the words that choose the MPI that knows it."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with cluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    run = tmp_path_factory.mktemp("alone") / "run"
    opstage(*TRAIN, "--epochs", "2", "--out", str(run)).well()
    return weights(run)


def srun(slurm: Slurm, mpi: str, count: int) -> tuple[str, ...]:
    """The words that start so many tasks; skips the test where Slurm's plugin for PMIx does not find its library."""
    words = ("srun", f"--mpi={mpi}", "-n", str(count))
    if mpi == "pmix" and slurm.run(*words, "true").code:
        pytest.skip("Slurm's plugin does not find libpmix.so (Debian: libpmix-dev)")
    return (*words, *ENGINES.get(mpi, ()))


@pytest.mark.parametrize("mpi, count", [("pmix", 2), ("pmi2", 2)])
def test_a_run_is_that_of_one_process(slurm: Slurm, alone: list[str], tmp_path: Path, mpi: str, count: int) -> None:
    run = tmp_path / "run"
    done = slurm.run(*srun(slurm, mpi, count), *COMMAND, *TRAIN, "--epochs", "2", "--out", str(run)).well()
    assert done.said.count("saved in") == 1
    assert f"process {count - 1} on " in done.said
    assert weights(run) == alone


@pytest.mark.parametrize(
    "mpi, words, said",
    [
        ("pmix", ("train", "mlp"), "there is no mesh, so there is one rank, but 2 processes were started"),
        ("pmi2", ("train", "mlp"), "there is no mesh, so there is one rank, but 2 processes were started"),
        ("none", TRAIN, "srun has started 2 tasks, but MPI joins none of them"),
    ],
)
def test_bad_input_is_said_once(slurm: Slurm, mpi: str, words: tuple[str, ...], said: str) -> None:
    done = slurm.run(*srun(slurm, mpi, 2), *COMMAND, *words)
    done.refused(said)


def test_open_mpi_does_not_know_pmi_2(slurm: Slurm) -> None:
    done = slurm.run("srun", "--mpi=pmi2", "-n", "2", *COMMAND, *TRAIN)
    done.refused("but MPI knows of 1")


@pytest.mark.parametrize("signal", ["USR1", pytest.param("TERM", marks=pytest.mark.slow)])
def test_a_signal_of_slurm_saves_after_one_step_and_the_run_goes_on(
    slurm: Slurm, alone: list[str], tmp_path: Path, signal: str
) -> None:
    """TERM is what Slurm sends at the end of a job's time."""
    run = tmp_path / "run"
    words = (*TRAIN, "--epochs", "2", "--run.log_every", "1", "--out", str(run))
    process = slurm.start(*srun(slurm, "pmix", 2), *COMMAND, *words)
    until, log = time.monotonic() + PATIENCE, run / "metrics.jsonl"
    while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") > 2):
        assert time.monotonic() < until
    for step in slurm.run("squeue", "-s", "-h", "-o", "%i").said.split():
        slurm.run("scancel", f"--signal={signal}", step)
    stopped = ended(process)
    assert stopped.code == 130, stopped.said
    assert stopped.said.count("saved; opstage train --resume") == 1
    slurm.run(*srun(slurm, "pmix", 4), *COMMAND, "train", "--resume", str(run)).well()
    assert weights(run) == alone
