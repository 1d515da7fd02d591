"""New processes without the imports that each would make: a server has made them, and forks a child for each.

`python` is `subprocess.run([sys.executable, ...], capture_output=True, text=True)` in what a child sees: its arguments,
folder, environment, streams and exit code, its `__main__` and `sys.path`, default signal handlers, no thread but its
own, its atexit handlers run at its end. Three things are not those of a new process: Opstage and what it needs are
imported already, objects hash as in the server's other children, and the parent is not who called. So tests about
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
from collections.abc import Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMMAND = ("-c", "from opstage.cli import main; main()")
"""The words before those of the command."""

EARLY = ("PYTHON", "OPENBLAS_", "OMP_", "MKL_", "NUMBA_", "GOTO_", "KMP_", "MPL", "LD_")
"""How the names of variables begin that are read when Python starts or when modules are imported."""

CAN_FORK = hasattr(os, "fork") and hasattr(socket, "send_fds") and sys.platform != "darwin"


def python(
    *arguments: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, server: str = ""
) -> subprocess.CompletedProcess[str]:
    """`python *arguments` in a child of the server, or of the one at the address `server`; its exit code and output.

    The arguments begin with `-c` or with the path of a script. Raises ValueError for options of the interpreter, and
    for an environment whose early variables are not this process's: those need a process that is new.
    """
    env = os.environ if env is None else env
    if not arguments or arguments[0].startswith("-") and arguments[0] != "-c":
        raise ValueError(f"{arguments[:1]}: a forked process runs -c or a script; start others with subprocess")
    for name in sorted(env.keys() ^ os.environ.keys() | {n for n in env if os.environ.get(n) != env[n]}):
        if name.startswith(EARLY) and not (name == "PYTHONPATH" and _adds_alone(env.get(name, ""))):
            raise ValueError(f"{name} is read before a forked process begins: start one that needs it with subprocess")
    words = [sys.executable, *arguments]
    if not CAN_FORK:
        return subprocess.run(words, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    request = {"words": list(arguments), "cwd": str(Path.cwd() if cwd is None else cwd), "env": dict(env)}
    with (
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        open(os.devnull, "rb") as nothing,
        socket.socket(socket.AF_UNIX) as line,
    ):
        line.connect(server or address())
        data = json.dumps(request).encode()
        socket.send_fds(line, [len(data).to_bytes(8, "big")], [nothing.fileno(), out.fileno(), err.fileno()])
        line.sendall(data)
        status = line.recv(64)
        if not status:
            raise RuntimeError("the server of processes has ended: its last words are in this process's stderr")
        texts = []
        for stream in (out, err):
            stream.seek(0)
            texts.append(stream.read().decode())
    return subprocess.CompletedProcess(words, int(status), *texts)


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
