"""Whatever a user's file does, it ends in one clear message, at the user's own line, with the right exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from opstage.cli.check import processes
from opstage.cli.check.cache import Cache
from opstage.cli.check.checks import check_user
from opstage.cli.check.processes import check_each
from opstage.cli.check.request import Asked, Request
from opstage.interpreters.shape_check.formats.document import CheckOutcome
from tests.processes import COMMAND

ASKED = Asked(inputs=("x: B 3",))

PROGRAMS = """
import json
import sys
number = 3

def loops(ops, x):
    for i in range(x.shape[0]):
        x = ops.relu(x)
    return x

def compares(ops, x):
    if x.shape[0] > 3:
        return x
    return ops.relu(x)

def branches(ops, x):
    return x if x else -x

def recurses(ops, x):
    return recurses(ops, x)

def raises(ops, x):
    raise RuntimeError("boom")

def raises_beneath(ops, x):
    return sorted([1, "a"])

def garbage(ops, x):
    return "garbage"

def nothing(ops, x):
    pass

def exits(ops, x):
    sys.exit("bye")

def hungry(ops, x):
    return bytearray(1 << 55)

def in_a_library(ops, x):
    return json.loads("{")

def too_many(ops, x, y):
    return x

def none():
    pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "programs.py").write_text(PROGRAMS)
    return tmp_path


def request(word: str, **changes: object) -> Request:
    file, _, function = word.partition(":")
    values = {"time_limit": 60.0, "memory_limit": None, **changes}
    return Request(word, file, None, function or None, ASKED, **values)  # type: ignore[arg-type]


def line(outcome: CheckOutcome) -> str:
    """The text of the line that an outcome speaks of."""
    source = outcome.unusable.source if outcome.unusable is not None else outcome.findings[0].source
    return "" if source is None else source.text


# What the function does ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "reason", "place"),
    [
        ("loops", "B is symbolic", "for i in range(x.shape[0]):"),
        ("compares", "whether B > 3 is not decided", "if x.shape[0] > 3:"),
        ("branches", "the truth value of a ref is not supported", "return x if x else -x"),
        ("recurses", "RecursionError", "return recurses(ops, x)"),
        ("raises", "RuntimeError: boom", 'raise RuntimeError("boom")'),
        ("raises_beneath", "TypeError: '<' not supported", 'return sorted([1, "a"])'),
        ("garbage", "got a str where it needs a ref", "def garbage(ops, x):"),
        ("nothing", "returns no tensor", "def nothing(ops, x):"),
        ("in_a_library", "JSONDecodeError: Expecting property name", 'return json.loads("{")'),
        ("hungry", "MemoryError", "return bytearray(1 << 55)"),
    ],
)
def test_a_function_that_goes_wrong_is_a_finding(name: str, reason: str, place: str) -> None:
    (outcome,) = check_user(request(f"programs.py:{name}"))
    assert outcome.exit_code() == 1
    (error,) = outcome.errors
    assert error.rule == "program" and reason in error.reason
    assert line(outcome) == place


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("exits", "exits could not be checked: it ends the process, with exit code 1 (bye)"),
        ("too_many", "no shapes are given for y of too_many"),
        ("none", "none takes no arguments; a program's first is the interpreter: none(ops, …)"),
        ("number", "number is an int, not a function"),
        ("loop", "has no 'loop' (did you mean 'loops'?)"),
    ],
)
def test_a_function_that_cannot_be_checked(name: str, reason: str) -> None:
    (outcome,) = check_user(request(f"programs.py:{name}"))
    assert outcome.exit_code() == 2
    assert outcome.unusable is not None and outcome.unusable.reason.startswith(reason)


# What the file does when it is imported -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason", "place"),
    [
        ("x = (1,\n", "SyntaxError: '(' was never closed", "x = (1,"),
        ("def f():\nreturn 1\n", "IndentationError: expected an indented block", "return 1"),
        ("import torchh\n", "ModuleNotFoundError: No module named 'torchh'", "import torchh"),
        ("from os import pathh\n", "ImportError: cannot import name 'pathh' from 'os'", "from os import pathh"),
        (
            "def f():\n    raise ValueError('no config')\nf()\n",
            "ValueError: no config",
            "raise ValueError('no config')",
        ),
        ("import json\njson.loads('{')\n", "JSONDecodeError: Expecting property name", "json.loads('{')"),
        ("import sys\nsys.exit(3)\n", "it ends the process, with exit code 3", "sys.exit(3)"),
        ("raise KeyboardInterrupt\n", "KeyboardInterrupt", "raise KeyboardInterrupt"),
        ("def f():\n    f()\nf()\n", "RecursionError", "f()"),
        ("import opstage\nopstage.Spec(3)\n", "a Spec's shape is text", "opstage.Spec(3)"),
        (
            "import opstage\n@opstage.shapes('x')\ndef f(ops, x): ...\n",
            "'x': expected a name, a colon",
            "@opstage.shapes('x')",
        ),
        ("x = 1\0\n", "SyntaxError: source code", ""),
    ],
)
def test_a_file_that_does_not_import(folder: Path, text: str, reason: str, place: str) -> None:
    (folder / "broken.py").write_text(text)
    (outcome,) = check_user(request("broken.py:loss"))
    assert outcome.exit_code() == 2 and outcome.unusable is not None
    assert outcome.unusable.reason.startswith(f"cannot be imported: {reason}")
    assert line(outcome) == place


def test_files_that_are_none(folder: Path) -> None:
    (folder / "folder.py").mkdir()
    (folder / "image.py").write_bytes(bytes(range(128, 256)))
    for word, reason in (
        ("missing.py:f", "no such file"),
        ("folder.py:f", "is a folder, not a Python file"),
        ("image.py:f", "cannot be imported: SyntaxError"),
        ("programs.py", "no function declares its shapes"),
    ):
        (outcome,) = check_user(request(word))
        assert outcome.unusable is not None and outcome.unusable.reason.startswith(reason)


def test_a_file_in_a_package_finds_its_neighbours(folder: Path) -> None:
    (folder / "package_of_mine").mkdir()
    (folder / "package_of_mine" / "__init__.py").write_text("")
    (folder / "package_of_mine" / "layers.py").write_text("def act(ops, x):\n    return ops.relu(x)\n")
    (folder / "package_of_mine" / "types.py").write_text(
        "from .layers import act\n\ndef loss(ops, x):\n    return act(ops, x)\n"
    )
    (folder / "types.py").write_text("def loss(ops, x):\n    return ops.relu(x)\n")
    for word in ("package_of_mine/types.py:loss", "types.py:loss"):  # also the name of a module of Python
        (outcome,) = check_user(request(word))
        assert outcome.ok, outcome


# What only a process of its own withstands --------------------------------------------------------------------------


LETHAL = {
    "sleeps": (
        "import time\ndef loss(ops, x):\n    time.sleep(1000)\n",
        "was not done after 0.5 s",
        "time.sleep(1000)",
    ),
    "spins": ("def loss(ops, x):\n    while True: pass\n", "was not done after 0.5 s", "while True: pass"),
    "late": ("import threading\nthreading.Event().wait()\n", "was not done after 0.5 s", "threading.Event().wait()"),
    "killed": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", "its process was killed by SIGKILL", ""),
    "crashes": ("import ctypes\nctypes.string_at(0)\n", "its process was killed by SIGSEGV", "ctypes.string_at(0)"),
    "orphaned": (
        "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\nos.kill(os.getpid(), signal.SIGKILL)\n",
        "its process was killed by SIGKILL",
        "",
    ),
    "quits": ("import os\nos._exit(7)\n", "it ended its process with exit code 7", ""),
}


@pytest.mark.parametrize("forks", [processes.CAN_FORK, pytest.param(False, marks=pytest.mark.slow)])
def test_what_ends_a_process_or_never_does(folder: Path, forks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "CAN_FORK", forks)
    lethal = LETHAL if forks else {name: case for name, case in LETHAL.items() if name != "orphaned"}  # kills pytest
    for name, (text, _, _) in lethal.items():
        (folder / f"{name}.py").write_text(text)
    each = check_each([request(f"{name}.py:loss", time_limit=0.5) for name in lethal], Cache(None))
    found = [outcome for outcomes in each for outcome in outcomes]
    for outcome, (name, (_, reason, place)) in zip(found, lethal.items(), strict=True):
        assert outcome.target == f"{name}.py:loss" and outcome.exit_code() == 2
        assert outcome.unusable is not None and outcome.unusable.reason.startswith(reason), outcome
        assert line(outcome) == place


@pytest.mark.skipif(not processes.CAN_FORK, reason="needs fork")
def test_files_of_one_server_know_nothing_of_each_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One server: state of modules and of the system, and what dies, stays with a file."""
    monkeypatch.setattr(processes, "usable_cores", lambda: 1)
    spoils = (
        "import builtins, os, signal, sys, threading, time\n"
        "import numpy, opstage, shared\n"
        "shared.seen = True\n"
        "for module in (builtins, numpy, opstage): module.seen = True\n"
        "os.environ['SEEN'] = '1'; sys.path.insert(0, '/seen'); sys.modules['seen'] = os; os.chdir('/')\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); os.umask(0o123)\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "def loss(ops, x):\n    return ops.relu(x)\n"
    )
    sees = (
        "import builtins, os, signal, sys, threading\n"
        "import numpy, opstage, shared\n"
        "def loss(ops, x):\n"
        "    assert not any(hasattr(module, 'seen') for module in (builtins, numpy, opstage, shared))\n"
        "    assert 'SEEN' not in os.environ and '/seen' not in sys.path and 'seen' not in sys.modules\n"
        "    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and os.umask(0) != 0o123\n"
        "    assert threading.active_count() <= 2 and os.getcwd() != '/'\n"  # the watch of the time limit is one
        "    return ops.relu(x)\n"
    )
    (folder / "shared.py").write_text("")
    for name in ("spoils", "quits", "killed", "orphaned", "sleeps"):
        (folder / f"{name}.py").write_text(LETHAL[name][0] if name in LETHAL else spoils)
        (folder / "sees.py").write_text(sees)
        limit = 5.0 if name == "spoils" else 0.5
        requests = [request(f"{name}.py:loss", time_limit=limit), request("sees.py:loss")]
        first, second = check_each(requests, Cache(None))
        assert first[0].ok is (name == "spoils"), first
        assert second[0].ok, second


def test_a_file_that_prints_reads_and_leaves_processes_behind(folder: Path) -> None:
    (folder / "loud.py").write_text(
        "import subprocess, sys, threading, time\n"
        "print('on output'); print('on error output', file=sys.stderr)\n"
        "subprocess.Popen(['sleep', '1000'])\n"
        "threading.Thread(target=time.sleep, args=(1000,)).start()\n"
        "got = sys.stdin.read()\n"
        "def loss(ops, x):\n"
        "    print('{' * 200_000)\n"
        "    assert got == ''\n"
        "    return ops.relu(x)\n"
    )
    words = ["check", "loud.py:loss", "--input", "x: B 3", "--format", "json"]
    command = [sys.executable, *COMMAND, *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
    (target,) = json.loads(ended.stdout)["targets"]
    assert target["ok"] and "on output" in target["printed"] and "on error output" in target["printed"]
    assert len(target["printed"]) < 70_000


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs process groups")
def test_an_interrupt_ends_what_is_being_checked(folder: Path) -> None:
    """Ctrl-C while the file runs, which says so by a file of its own."""
    (folder / "waits.py").write_text(
        "import os, pathlib, time\n"
        "pathlib.Path('started.new').write_text(str(os.getpid()))\n"
        "os.rename('started.new', 'started')\n"
        "time.sleep(1000)\n"
    )
    command = [sys.executable, *COMMAND, "check", "waits.py:loss", "--input", "x: B"]
    running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    while not (folder / "started").exists():
        assert running.poll() is None
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert (running.returncode, out, err.strip()) == (130, "", "interrupted")
    with pytest.raises(ProcessLookupError):
        os.kill(int((folder / "started").read_text()), 0)
