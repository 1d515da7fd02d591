"""Two hosts on one machine: network namespaces with names of their own, joined by a wire."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.mpi.started import ENVIRONMENT, ROOT, SCRIPTS

_ON = 'exec ip netns exec {space} unshare --uts sh -c "hostname {name}; $*"'


class Hosts(NamedTuple):
    """Two hosts, each with a script that runs a command there.

    launching   the variables by which Open MPI starts half of the processes on each
    cut         the command that takes the second one off the network
    """

    on: tuple[Path, Path]
    launching: dict[str, str]
    cut: str

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Start a command on the first host."""
        return subprocess.Popen(
            [str(self.on[0]), *words],
            env={**ENVIRONMENT, **self.launching, "CUT": self.cut},
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def mpiexec(self, *words: str) -> subprocess.Popen[str]:
        """Start a module on four processes, two on each host."""
        mpi = (str(SCRIPTS / "mpiexec"), "--bind-to", "none", "--with-ft", "ulfm", "-x", "CUT")
        return self.start(*mpi, "-n", "4", sys.executable, "-m", *words)


def missing() -> str:
    """Return why no hosts can be made here, or an empty text."""
    if not shutil.which("ip") or not shutil.which("unshare"):
        return "network namespaces need the programs ip (iproute2) and unshare (util-linux)"
    try:
        with tempfile.TemporaryDirectory() as folder, hosts(Path(folder)) as made:
            subprocess.run([str(made.on[0]), "true"], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        return f"this user or container may not make network namespaces: {error.cmd}: {error.stderr.strip()}"
    return ""


def _script(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(("#!/bin/sh", *lines, "")))
    path.chmod(0o755)
    return path


@contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    """Two hosts, `node0` and `node1`, whose scripts are in a folder."""
    spaces = [f"opstage-{os.getpid()}-{number}" for number in range(2)]
    wires = [f"op{os.getpid()}n{number}" for number in range(2)]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    try:
        for space in spaces:
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("link", "add", wires[0], "netns", spaces[0], "type", "veth", "peer", "name", wires[1], "netns", spaces[1])
        for number, (space, wire) in enumerate(zip(spaces, wires)):
            ip("-n", space, "addr", "add", f"10.77.0.{1 + number}/24", "dev", wire)
            ip("-n", space, "link", "set", wire, "up")
        first, second = (
            _script(folder / f"on{number}", _ON.format(space=space, name=f"node{number}"))
            for number, space in enumerate(spaces)
        )
        cases = (f"10.77.0.1) shift; exec {first} $*;;", f"10.77.0.2) shift; exec {second} $*;;")
        agent = _script(folder / "agent", 'case "$1" in', *cases, "esac")
        file = folder / "hosts"
        file.write_text("10.77.0.1 slots=2\n10.77.0.2 slots=2\n")
        launching = {"PRTE_MCA_prte_default_hostfile": str(file), "PRTE_MCA_plm_ssh_agent": str(agent)}
        yield Hosts((first, second), launching, f"ip link set {wires[1]} down")
    finally:
        for space in spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
