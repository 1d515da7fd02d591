"""One program on two hosts, between which messages cross a network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mpi.hosts import Hosts, hosts, missing
from tests.mpi.started import alone, ended, opstage
from tests.mpi.test_failures import left_behind, nothing_stays
from tests.mpi.test_launch import TRAIN, children, weights

RUNS = ("mlp:eager:5:data=4", "gpt:compiled:5:data=4", "gpt:compiled:5:data=4:3:9000")
OPSTAGE = (sys.executable, "-P", "-c", "'from opstage.cli import main; main()'")


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with hosts(tmp_path_factory.mktemp("hosts")) as made:
        yield made


def test_parameters_have_the_bits_of_one_process(two: Hosts) -> None:
    done = ended(two.mpiexec("tests.mpi.digests", *RUNS)).well()
    assert done.digests == alone(*RUNS)


def test_launch_starts_processes_on_both(two: Hosts, tmp_path: Path) -> None:
    runs = tmp_path / "alone", tmp_path / "run"
    assert opstage(*TRAIN, "--epochs", "1", "--out", str(runs[0])).code == 0
    done = ended(two.start(*OPSTAGE, "launch", "-n", "4", *TRAIN, "--epochs", "1", "--out", str(runs[1]))).well()
    assert weights(runs[1]) == weights(runs[0])
    for process in range(4):
        assert f"process {process} on node{process // 2}, rank {process}" in done.said


@pytest.mark.parametrize(
    "kind, said",
    [
        ("raise", "KeyError: 'a file of the data set is gone'"),
        ("kill", "process 3 of 4 on node1 has died in collective 4, all_reduce over data of (16,) float32"),
        ("stop", "process 3 of 4 on node1 does not answer"),
    ],
)
def test_a_failure_on_the_other_host_is_named(two: Hosts, kind: str, said: str) -> None:
    done = ended(two.mpiexec("tests.mpi.faulty", kind, "eager"))
    assert said in done.said, done.said
    assert done.said.count("Traceback") == 1, done.said
    assert "done" not in done.said
    nothing_stays()


def test_a_cut_wire_ends_the_run(two: Hosts) -> None:
    """After the timeout, on both sides of it. Open MPI's daemons then wait for each other, and are ended here."""
    process = two.mpiexec("tests.mpi.faulty", "cut", "eager")
    said = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            said.append(line)
            if "RankError: " in line:
                break
        assert "process 2 of 4 on node1 and process 3 of 4 on node1 does not answer" in said[-1], said
        until = time.monotonic() + 60
        while ranks() and time.monotonic() < until:
            time.sleep(0.1)
        assert ranks() == []
    finally:
        _end(process)
    assert left_behind("tests.mpi.faulty") == []


def ranks() -> list[str]:
    """The processes of a run that are still there, without those that have started them."""
    return [each for each in left_behind("tests.mpi.faulty") if each.startswith(sys.executable)]


def _end(process: subprocess.Popen[str]) -> None:
    """End a command and all that it has started."""
    for each in (*reversed(children(process.pid)), process.pid):
        try:
            os.kill(each, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.communicate()
