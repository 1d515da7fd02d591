"""What is wrong before a run or at its checkpoints: one error from one process, exit code 2, nothing half-written."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from opstage.training import checkpoint
from tests.mpi.started import ROOT, ended, mpiexec, start

TEMPLATE = ROOT / "opstage" / "cli" / "new_model.txt"
TRAIN = ("train", "mlp", "--mesh", "data=4", "--batch-size", "64", "--epochs", "1")


class Case(NamedTuple):
    """A command on so many processes, and what its one error says; `also` is what else it may say."""

    kind: str
    words: tuple[str, ...]
    said: str
    processes: int = 2


CASES = {
    "another version": Case("version", TRAIN, "opstage is "),
    "another option": Case("option", TRAIN, "the processes of this run differ: optimizer.lr is "),
    "other data": Case("plain", (*TRAIN, "--data", "rows.npz"), "the digest of the "),
    "other code": Case("plain", ("train", "own.py", *TRAIN[2:]), "the processes of this run differ: run.model is "),
    "no file on one": Case("plain", (*TRAIN, "--data", "one.npz"), "process 1 of 2: one.npz"),
    "no mpi4py": Case("no-engine", TRAIN, "but mpi4py, by which they meet, cannot be used"),
    "no nccl4py": Case(
        "simulated", (*TRAIN, "--device", "cuda"), "but nccl4py, by which their GPUs meet, cannot be used"
    ),
    "more processes than GPUs": Case("simulated", (*TRAIN, "--device", "cuda"), "4 of 4 processes are on ", 4),
    "one GPU for two processes": Case("nccl", (*TRAIN, "--device", "cuda:1"), "processes 0 and 1 of 2 have one GPU"),
    "no mpi4py on one": Case("no-engine-on-one", TRAIN, "but mpi4py, by which they meet, cannot be used"),
    "a full disk at the first checkpoint": Case("full-disk", (*TRAIN, "--out", "run"), "No space left on device"),
    "a full disk later": Case(
        "full-disk-late",
        (*TRAIN, "--zero", "3", "--run.checkpoint_every", "1", "--out", "run"),
        "No space left on device",
    ),
    "an axis that the program does not know": Case(
        "plain", ("train", "mlp", "--mesh", "data=2,stage=2"), "the program does not use mesh axis 'stage'"
    ),
    "more processes than ranks": Case(
        "plain", ("train", "mlp", "--mesh", "data=2"), "has 2 ranks, but 4 processes were started", 4
    ),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each of two processes: data and code that differ, and a file that only one has."""
    root = tmp_path_factory.mktemp("bad")
    rng = np.random.default_rng(0)
    for process in (0, 1):
        own = root / str(process)
        own.mkdir()
        rows = {"x": rng.standard_normal((300, 1, 8, 8)).astype(np.float32), "y": np.arange(300) % 10}
        np.savez(own / "rows.npz", **rows)
        if process == 0:
            np.savez(own / "one.npz", **rows)
        (own / "own.py").write_text(f"{TEMPLATE.read_text()}\n# as process {process} has it\n")
    return root


@pytest.mark.parametrize("name", CASES)
def test_it_is_one_error_of_one_process(name: str, folder: Path, tmp_path: Path) -> None:
    case = CASES[name]
    work = tmp_path if "--out" in case.words else folder
    done = mpiexec(case.processes, "tests.mpi.differing", case.kind, str(work), *case.words)
    done.refused(case.said)
    if "--out" in case.words:
        left = sorted(path.name for path in tmp_path.rglob("*") if path.name.endswith(".tmp"))
        assert left == []
        folder_of = tmp_path / "run" / "checkpoint"
        if name.endswith("later"):  # the one before stays, and is whole
            assert checkpoint.load(folder_of).position.batch > 0
        assert len(list(folder_of.iterdir())) in (0, 2) if folder_of.exists() else True


def test_processes_that_no_engine_joins() -> None:
    """A launcher that MPI does not know has started this one as one of two: it must not train alone."""
    words = ("env", "PMI_SIZE=2", "PMI_RANK=0", sys.executable, "-P", "-c", "from opstage.cli import main; main()")
    ended(start(*words, *TRAIN)).refused("MPI knows of 1")
