"""`opstage launch -n N train …`: run a command on N processes, which host the ranks of a mesh together."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import click

from ..distributed.processes import ENDED, TERMINAL, is_terminal
from ..ops.errors import UsageError
from ..ops.mesh import parse_mesh
from ..options import Options
from ..runs.directory import CHECKPOINT, CONFIG
from .commands import Command
from .exit_codes import DIED, INTERRUPTED, TERMINATED

_ENDED = (0, 2, INTERRUPTED, TERMINATED)
"""Exit codes of a run that ended normally: done, unusable input, interrupted, terminated."""

_LINGERS = 20.0
"""Seconds in which mpiexec must end after the run has failed."""

_START = "from opstage.cli import main; main()"


@click.command(cls=Command, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "-n", "--processes", type=click.IntRange(1, 4096), required=True, metavar="N", help="Number of processes."
)
@click.option(
    "--restarts",
    type=click.IntRange(0, 1000),
    default=0,
    metavar="N",
    help="Maximum number of restarts, on fewer processes.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def launch(processes: int, restarts: int, command: tuple[str, ...]) -> int:
    """Run an opstage COMMAND on several processes.

    For instance: opstage launch -n 4 train gpt --mesh data=8. The launcher is mpiexec, from the extra opstage[mpi] or
    on PATH. Ctrl-C stops all processes after the same step and saves the run; a second Ctrl-C ends them immediately.

    If a process fails, --restarts resumes the run from its last checkpoint.
    """
    if command[0] == "launch":
        raise UsageError("launch: argument COMMAND: expected another command, such as train, got launch")
    mpiexec = _mpiexec()
    run = _run_of(command)
    if restarts and run is None:
        raise UsageError("--restarts resumes from a checkpoint: give the run a directory, train … --out RUN")
    while True:
        before = _checkpoint(run)
        code = _on_processes(mpiexec, processes, command)
        if code in _ENDED or not restarts:
            return code
        if run is None or _checkpoint(run) in (None, before):
            click.echo("opstage: not restarted, because no checkpoint was written since the start", err=True)
            return code
        restarts -= 1
        processes = _fewer(processes, run)
        command = ("train", "--resume", str(run))
        click.echo(f"opstage: resumes {run} on {processes} processes, {restarts} restarts left", err=True)


def _mpiexec() -> str:
    """Return the launcher next to this Python, else the one on PATH. Raises UsageError if there is none."""
    beside = Path(sysconfig.get_path("scripts")) / "mpiexec"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise UsageError("mpiexec, which starts the processes, was not found: pip install 'opstage[mpi]'")
    return found


def _on_processes(mpiexec: str, processes: int, command: Sequence[str]) -> int:
    """Run a command on the processes to its end and return the exit code."""
    words = [mpiexec, *_flags(mpiexec), "-n", str(processes), sys.executable, "-P", "-c", _START, *command]
    with tempfile.TemporaryDirectory(prefix="opstage-launch-") as folder:
        note = Path(folder) / "ended"
        running = subprocess.Popen(
            words,
            env={**_environment(), ENDED: str(note), TERMINAL: str(int(is_terminal(sys.stdout)))},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
        try:
            with _passing_on(running):
                code = _ended(running, note)
        finally:
            if running.poll() is None:
                os.killpg(running.pid, signal.SIGKILL)
                running.wait()
        if note.exists():
            code = int(note.read_text() or code or 1)
        elif code == 0:  # no process reported how it ended; mpiexec returns 0 even if processes died
            click.echo("opstage: the processes of this run have died", err=True)
            code = DIED
    return code if code >= 0 else 128 - code


def _ended(running: subprocess.Popen[bytes], note: Path) -> int:
    """Wait for mpiexec and return its exit code.

    Once a process has said that the run has failed, mpiexec has a while to end: Open MPI's waits for ever for
    hosts that it cannot reach any more.
    """
    since = None
    while True:
        try:
            return running.wait(1.0)
        except subprocess.TimeoutExpired:
            if since is None and note.exists() and int(note.read_text() or 0) not in _ENDED:
                since = time.monotonic()
            if since is not None and time.monotonic() - since > _LINGERS:
                click.echo("opstage: mpiexec was ended, because a host does not answer it", err=True)
                return 1


def _flags(mpiexec: str) -> tuple[str, ...]:
    """Allow more processes than cores, and let Open MPI notify the others when one dies."""
    told = subprocess.run([mpiexec, "--version"], capture_output=True, text=True, env=_environment(), check=False)
    open_mpi = any(name in told.stdout for name in ("Open MPI", "OpenRTE", "PRRTE"))
    return ("--oversubscribe", "--bind-to", "none", "--with-ft", "ulfm") if open_mpi else ()


def _environment() -> Mapping[str, str]:
    root = hasattr(os, "geteuid") and os.geteuid() == 0
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"} if root else {}
    home = {} if os.environ.get("HOME") else {"HOME": tempfile.gettempdir()}  # Open MPI does not start without
    return {**os.environ, **allowed, **home}


def _end_with_parent() -> None:
    """Ask the kernel to end mpiexec, and with it its processes, when this process ends."""
    if sys.platform == "linux":
        parent_death_signal = 1
        ctypes.CDLL(None).prctl(parent_death_signal, signal.SIGTERM)


@contextmanager
def _passing_on(running: subprocess.Popen[bytes]) -> Iterator[None]:
    """A block in which the first SIGINT or SIGTERM asks the processes to stop after a step, and the next ends them."""
    asked: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        with suppress(ProcessLookupError):
            running.send_signal((signal.SIGUSR1, signal.SIGTERM, signal.SIGKILL)[min(len(asked), 3) - 1])

    before = {number: signal.signal(number, hear) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_of(command: Sequence[str]) -> Path | None:
    """Return the directory of the run that a command starts or resumes."""
    for i, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in ("--out", "--resume", "--run.out"):
            return Path(value) if equals else Path(command[i + 1]) if i + 1 < len(command) else None
    return None


def _checkpoint(run: Path | None) -> list[tuple[str, int]] | None:
    """Return a value that changes whenever a checkpoint is written; None if there is none."""
    if run is None or not (run / CHECKPOINT).is_dir():
        return None
    found = []
    for path in (run / CHECKPOINT).iterdir():
        with suppress(FileNotFoundError):  # a process that outlives its mpiexec for a moment replaces it
            found.append((path.name, path.stat().st_mtime_ns))
    return sorted(found)


def _fewer(processes: int, run: Path) -> int:
    """Return the largest number below `processes` that can host the ranks of a run; 1 always can."""
    ranks = parse_mesh(Options.from_toml(run / CONFIG).mesh).ranks
    return max((n for n in range(1, processes) if ranks % n == 0), default=1)
