"""A forked process is, to its program, one that was started: the same output, errors and exit codes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes import CAN_FORK, COMMAND, ROOT, Forked, python

SCRIPT = "import sys\nprint(sorted(globals()), __file__, __name__, sys.argv, sys.path, sys.stdin.read())"
PROGRAMS = {
    "arguments": "import sys; print(sys.argv, sys.path, sys.stdin.read())",
    "a failure": "def f(): return 1 / 0\nf()",
    "words for an exit code": "import sys; sys.exit('no')",
    "an exit code": "import sys; print('almost', end=''); sys.exit(3)",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "handlers": "import signal; print([signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)])",
    "words at the end": "import atexit, threading as t; atexit.register(print, 'end'); t.Thread(target=print).start()",
    "one thread": "import threading; print(threading.enumerate()[0].name, threading.active_count())",
    "its own main": "import sys; x = 1; print(sys.modules['__main__'].x, 'tests' in sys.modules, sorted(globals()))",
    "an environment": "import os; print(sorted(os.environ.items()), os.getcwd())",
    "a process of its own": "import subprocess; print(subprocess.run(['sh', '-c', 'exit 4']).returncode)",
    "open files": "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:3], os.fstat(0).st_rdev)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_cannot_tell(name: str, tmp_path: Path) -> None:
    same(["-c", PROGRAMS[name], "a word", "--more"], tmp_path)


def test_a_script_cannot_tell(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    same(["script.py", "a word"], tmp_path)
    same([str(tmp_path / "script.py")], tmp_path)


def test_the_command_cannot_tell(tmp_path: Path) -> None:
    same([*COMMAND, "graph", "no-such-model"], tmp_path)


def same(arguments: list[str], cwd: Path) -> None:
    env = {**os.environ, "MARKED": "here", "COLUMNS": "80"}
    for path in (str(ROOT), os.pathsep.join([str(cwd), str(ROOT)])):
        env["PYTHONPATH"] = path
        forked = python(*arguments, cwd=cwd, env=env)
        started = subprocess.run(
            [sys.executable, *arguments], cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        assert (forked.returncode, forked.stdout, forked.stderr) == (started.returncode, started.stdout, started.stderr)


SESSION = """
import os, sys
print(os.getpid() == os.getsid(0), sys.argv, sys.path, [os.path.basename(file) for file in os.listdir()], flush=True)
print(sys.stdin.read(), os.environ["MARKED"], file=sys.stderr)
sys.exit(len(sys.stdin.read()) + 3)
"""


@pytest.mark.skipif(not CAN_FORK, reason="processes are started here")
def test_one_with_pipes_cannot_tell_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As workers of `opstage check` are started: at the head of a session, with no folder of programs in the path."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here.py").touch()
    env = {**os.environ, "MARKED": "here", "PYTHONPATH": str(ROOT)}
    words = ("-P", "-c", SESSION, "a word")
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    told = []
    for process in (
        Forked(*words, env=env),
        subprocess.Popen([sys.executable, *words], env=env, start_new_session=True, **pipes),
    ):
        assert process.stdin is not None and process.stdout is not None
        with process.stdin, process.stdout:
            line = process.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):  # it waits for the end of its input
                process.wait(0.0)
            process.stdin.write(b"more")
            process.stdin.close()
            told.append((line, process.stdout.read(), process.wait(), process.returncode))
    assert told[0] == told[1] and told[0][2] == 3


@pytest.mark.skipif(not CAN_FORK, reason="processes are started here")
def test_one_that_is_killed_says_so() -> None:
    process = Forked("-P", "-c", "import sys; sys.stdin.read()", env=os.environ)
    with process.stdin, process.stdout:
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == process.wait(1.0) == -signal.SIGKILL


def test_no_two_draw_the_same_numbers() -> None:
    program = "import random, numpy; print(random.random(), numpy.random.rand())"
    assert python("-c", program).stdout != python("-c", program).stdout


@pytest.mark.parametrize("name", ["OPENBLAS_NUM_THREADS", "PYTHONHASHSEED", "NUMBA_ENABLE_CUDASIM"])
def test_what_is_read_early_needs_a_new_process(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} is read before"):
        python("-c", "", env={**os.environ, name: "7"})


def test_so_do_another_opstage_and_options_of_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "opstage").mkdir()
    with pytest.raises(ValueError, match="PYTHONPATH is read before"):
        python("-c", "", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    with pytest.raises(ValueError, match="runs -c or a script"):
        python("-m", "pytest")
