"""New processes without the imports that each would make: a server has made them, and forks a child for each.

`python` is `subprocess.run([sys.executable, ...], capture_output=True, text=True)` in what a child sees: its arguments,
folder, environment, streams and exit code, its `__main__` and `sys.path`, default signal handlers, no thread but its
own, its atexit handlers run at its end. Four things are not those of a new process: Opstage and what it needs are
imported already, objects hash as in the server's other children, the parent is not who called, and files that nobody
has closed are not flushed. So tests about
imports, of interrupts, or of what happens when processes die start them with subprocess.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from pathlib import Path
from typing import IO, ParamSpec, final

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ("-c", "from opstage.cli import main; main()")
"""The words before those of the command."""

EARLY = ("PYTHON", "OPENBLAS_", "OMP_", "MKL_", "NUMBA_", "GOTO_", "KMP_", "MPL", "LD_")
"""How the names of variables begin that are read when Python starts or when modules are imported."""

CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds") and sys.platform != "darwin"

P = ParamSpec("P")


def python(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, server: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python *arguments` in a child of the server, or of the one at the address `server`; its exit code and output.

    The arguments begin with `-c`, `-P -c` or with the path of a script. Raises ValueError for other options of the
    interpreter, and for an environment whose early variables are not this process's: those need a process that is new.
    """
    env = os.environ if env is None else env
    _require_a_fork_will_do(arguments, env)
    words = [sys.executable, *arguments]
    if not CAN_FORK:
        return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        open(os.devnull, "rb") as nothing,
        _forked(arguments, cwd, env, (nothing, out, err), server or address()) as line,
    ):
        status = line.recv(64)
        if not status:
            raise RuntimeError("the server of processes has ended: its last words are in this process's stderr")
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess(words, int(status), *texts)


def alone(test: Callable[P, None]) -> Callable[P, None]:
    """The test, run by a process that runs nothing else; its arguments must have a repr that Python reads.

    A test of the memory that a process has needs one: where thousands of others have run, what they gave back lies in
    pieces, and whether a new array finds room in them is chance.
    """

    @wraps(test)
    def started(*args: P.args, **kwargs: P.kwargs) -> None:
        call = f"import {test.__module__} as tests; tests.{test.__name__}.__wrapped__(*{args!r}, **{kwargs!r})"
        ended = python("-c", call, cwd=ROOT)
        assert ended.returncode == 0, ended.stderr

    return started


@final
class Forked:
    """`subprocess.Popen([sys.executable, *arguments], stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True)`
    in what a child of the server shows of it: `pid`, pipes, `wait` and `returncode`. Raises what `python` does."""

    def __init__(self, *arguments: str, env: Mapping[str, str]):
        _require_a_fork_will_do(arguments, env)
        self.returncode: int | None = None
        self._waiting = threading.Lock()
        given, self.stdin = _pipe()
        self.stdout, told = _pipe()
        with given, told, open(os.devnull, "wb") as nothing:
            self._line = _forked(arguments, None, env, (given, told, nothing), address(), session=True)
        self.pid = int(self._line.makefile("rb", buffering=0).readline())

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended. Raises subprocess.TimeoutExpired."""
        with self._waiting:
            if self.returncode is None:
                self._line.settimeout(timeout)
                try:
                    self.returncode = int(self._line.recv(64) or -signal.SIGKILL)
                except (TimeoutError, BlockingIOError):
                    raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
                self._line.close()
            return self.returncode


def _pipe() -> tuple[IO[bytes], IO[bytes]]:
    """The two ends of a pipe."""
    reads, writes = os.pipe()
    return open(reads, "rb"), open(writes, "wb")


def _require_a_fork_will_do(arguments: Sequence[str], env: Mapping[str, str]) -> None:
    words = arguments[1:] if arguments[:2] == ("-P", "-c") else arguments
    if not words or words[0].startswith("-") and words[0] != "-c":
        raise ValueError(f"{arguments[:1]}: a forked process runs -c or a script; start others with subprocess")
    for name in sorted(env.keys() ^ os.environ.keys() | {n for n in env if os.environ.get(n) != env[n]}):
        if name.startswith(EARLY) and not (name == "PYTHONPATH" and _adds_alone(env.get(name, ""))):
            raise ValueError(f"{name} is read before a forked process begins: start one that needs it with subprocess")


def _forked(
    arguments: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str],
    streams: Sequence[IO[bytes]],
    server: str,
    session: bool = False,
) -> socket.socket:
    """A line to a server that has been asked for a child: it says how that ended, and before, of a session, its pid."""
    request = {"words": arguments, "cwd": str(cwd or Path.cwd()), "env": dict(env), "session": session}
    line = socket.socket(socket.AF_UNIX)
    line.connect(server)
    data = json.dumps(request).encode()
    socket.send_fds(line, [len(data).to_bytes(8, "big")], [stream.fileno() for stream in streams])
    line.sendall(data)
    return line


def _adds_alone(path: str) -> bool:
    """Whether these folders of PYTHONPATH leave Opstage the one that the server has imported."""
    return not any(Path(folder, "opstage").is_dir() for folder in path.split(os.pathsep) if folder != str(ROOT))


def address() -> str:
    """Where this process's server listens; it is started when it is first needed, and ends with this process."""
    return _started(os.getpid())


@cache
def _started(_: int) -> str:
    folder = tempfile.TemporaryDirectory(prefix="opstage-")
    path = str(Path(folder.name, "line"))
    env = dict(os.environ, PYTHONPATH=str(ROOT))
    served = subprocess.Popen(
        [sys.executable, "-m", "tests.process_server", path],
        cwd=ROOT,
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        restore_signals=True,
        preexec_fn=_default_interrupts,
    )
    assert served.stdin is not None and served.stdout is not None
    if served.stdout.readline() != b"ready\n":
        raise RuntimeError("the server of processes has not started: its last words are in this process's stderr")
    served.stdout.close()

    def end() -> None:
        served.communicate()  # which closes its input: then it ends
        folder.cleanup()

    atexit.register(end)
    return path


def _default_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
