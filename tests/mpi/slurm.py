"""A Slurm of this machine alone, in a folder of its own, from munged, slurmctld and slurmd of Debian's slurm-wlm."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mpi.started import ENVIRONMENT, PATIENCE, ROOT, Ended, ended

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sinfo", "scancel", "squeue")

CONFIGURATION = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Why Slurm cannot be started here; nothing where it can."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    absent = [name for name in NEEDED if shutil.which(name, path=path) is None]
    if absent:
        return f"{', '.join(absent)} not installed (Debian: slurm-wlm, munge, libpmix-dev)"
    return "" if os.geteuid() == 0 else "only root can start slurmd"


class Slurm:
    """A cluster of one machine that runs."""

    def __init__(self, root: Path):
        self.environment = {
            **{name: value for name, value in ENVIRONMENT.items() if not name.startswith("SLURM_")},
            "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin",
            "SLURM_CONF": str(root / "slurm.conf"),
            "PMIX_MCA_psec": "native",  # else Open MPI says of munge, which its wheel lacks, that it lacks it
        }

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A command that goes on while the test does."""
        return subprocess.Popen(
            words, env=self.environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *words: str) -> Ended:
        """The end of a command."""
        return ended(self.start(*words))


def _ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    found = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return found


@contextmanager
def cluster(root: Path) -> Iterator[Slurm]:
    """A block in which Slurm runs."""
    for name in ("state", "spool"):
        (root / name).mkdir()
    (root / "munge.key").write_bytes(os.urandom(1024))
    (root / "munge.key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    (root / "slurm.conf").write_text(CONFIGURATION.format(host=host, ports=_ports(2), root=root))
    slurm = Slurm(root)
    kept = [f"--{name}={root}/munge.{name.partition('-')[0]}" for name in ("pid-file", "log-file", "seed-file")]
    daemons: list[Sequence[str]] = [
        ("munged", "--foreground", "--force", f"--socket={root}/munge.socket", f"--key-file={root}/munge.key", *kept),
        ("slurmctld", "-D"),
        ("slurmd", "-D"),
    ]
    running: list[subprocess.Popen[bytes]] = []
    try:
        for words in daemons:
            log = (root / f"{words[0]}.said").open("wb")
            running.append(subprocess.Popen(words, env=slurm.environment, stdout=log, stderr=log))
            if words[0] == "munged":
                _wait((root / "munge.socket").exists, root)
        _wait(lambda: slurm.run("sinfo", "-h", "-o", "%t").said.strip() == "idle", root)
        yield slurm
    finally:
        for each in reversed(running):
            each.terminate()
            each.wait(PATIENCE)


def _wait(done: Callable[[], bool], root: Path) -> None:
    until = time.monotonic() + 60
    while not done():
        said = "\n".join(path.read_text(errors="replace")[-2000:] for path in root.glob("*.said"))
        assert time.monotonic() < until, f"Slurm does not start: {said}"
