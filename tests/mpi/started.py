"""Commands started as users start them, in this environment, with one thread each and generous patience."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(sysconfig.get_path("scripts"))
PATIENCE = 300
MPICH = Path(sys.prefix) / "mpich"
"""MPICH's folder, beside the Open MPI of this environment; `make mpi-tests` makes it."""
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith(("OPSTAGE_", "OMPI_", "PMI", "PRTE_"))},
    "NUMBA_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "ignore",
}


class Ended(NamedTuple):
    """How a command ended, and all that it said."""

    code: int
    said: str

    def well(self) -> Ended:
        """The same, which has succeeded."""
        assert self.code == 0, self.said
        return self

    def refused(self, said: str) -> None:
        """It has ended with one error of bad input, which says so."""
        assert (self.code, self.said.count("opstage: ")) == (2, 1) and said in self.said, self.said
        assert "Traceback" not in self.said, self.said

    @property
    def digests(self) -> list[str]:
        """What `tests.mpi.digests` has said of its runs."""
        return [line for line in self.said.splitlines() if re.match(r"\w+:\w+:\d+:data=\d", line)]


def start(*words: str) -> subprocess.Popen[str]:
    """A command that goes on while the test does."""
    return subprocess.Popen(
        words, env=ENVIRONMENT, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )


def ended(process: subprocess.Popen[str]) -> Ended:
    """The end of a command; one that does not come to an end fails the test."""
    try:
        said, _ = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Ended(process.returncode, said)


def opstage(*words: str) -> Ended:
    """An opstage command."""
    return ended(start(sys.executable, "-P", "-c", "from opstage.cli import main; main()", *words))


def alone(*runs: str) -> list[str]:
    """The digests of these runs on one process."""
    found = ended(start(sys.executable, "-m", "tests.mpi.digests", *runs)).well().digests
    assert len(found) == len(runs)
    return found


def by_mpich() -> dict[str, str]:
    """The variables with which mpi4py finds MPICH in place of Open MPI."""
    return {"MPI4PY_MPIABI": "mpich", "LD_LIBRARY_PATH": str(MPICH / "lib")}


def mpiexec(processes: int, module: str, *words: str, engine: str = "openmpi", **environment: str) -> Ended:
    """The end of a module on several processes, by mpiexec itself, in an environment with these variables too."""
    return ended(on_processes(processes, module, *words, engine=engine, **environment))


def on_processes(
    processes: int, module: str, *words: str, engine: str = "openmpi", **environment: str
) -> subprocess.Popen[str]:
    """A module on several processes that goes on while the test does."""
    mpi = [str(SCRIPTS / "mpiexec"), "--oversubscribe", "--bind-to", "none", "--with-ft", "ulfm"]
    if engine == "mpich":
        mpi, environment = [str(MPICH / "bin" / "mpiexec")], {**by_mpich(), **environment}
    variables = ("env", *[f"{name}={value}" for name, value in environment.items()]) if environment else ()
    return start(*variables, *mpi, "-n", str(processes), sys.executable, "-m", module, *words)
