"""Pipes and devices where a file is expected: an error at once, where reading would wait for ever."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from opstage import Options
from opstage.cli.check.selection import read_target
from opstage.config import read_toml
from opstage.data import from_csv, from_file, from_npy, from_npz
from opstage.data.array_files import read_idx
from opstage.data.text import read_text
from opstage.interop.weights import read_state_dict, read_weights
from opstage.interpreters.graph import Graph
from opstage.ops.errors import UsageError
from opstage.runs.settings import configure
from opstage.runs.text_generation import load_gpt
from opstage.safetensors_files import read_header, read_tensors
from opstage.training import checkpoint

READERS: dict[str, Callable[[Path], Any]] = {
    "read_toml": read_toml,
    "configure": lambda path: configure("cnn", file=path),
    "Options.from_toml": Options.from_toml,
    "from_csv": from_csv,
    "from_npy": lambda path: from_npy(x=path),
    "from_npz": from_npz,
    "from_file": from_file,
    "read_idx": read_idx,
    "read_text": read_text,
    "read_tensors": read_tensors,
    "read_header": read_header,
    "read_state_dict": read_state_dict,
    "read_weights": read_weights,
    "index of weights": lambda path: read_weights(path.rename(f"{path}.json")),
    "checkpoint.load": checkpoint.load,
    "load_gpt": load_gpt,
    "Graph.load": Graph.load,
}


@pytest.fixture(autouse=True)
def no_waiting() -> Iterator[None]:
    """A reader that waits fails."""

    def waited(number: int, frame: Any) -> None:
        raise AssertionError("the reader waits")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listening(path: Path) -> None:
    server = socket.socket(socket.AF_UNIX)
    here = Path.cwd()
    os.chdir(path.parent)  # addresses are short
    server.bind(path.name)
    os.chdir(here)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def pseudoterminal(path: Path) -> None:
    path.symlink_to("/dev/ptmx")


@pytest.mark.parametrize("make", [fifo, listening, endless, pseudoterminal])
@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("end", ["", ".csv", ".npz"])
def test_what_is_no_file_is_refused(reader: str, make: Callable[[Path], None], end: str, tmp_path: Path) -> None:
    path = tmp_path / f"given{end}"
    make(path)
    with pytest.raises(UsageError) as error:
        READERS[reader](path)
    assert str(path) in str(error.value)


def test_a_program_to_check_is_a_file(tmp_path: Path) -> None:
    fifo(tmp_path / "program.py")
    with pytest.raises(UsageError, match="is a pipe or a device"):
        read_target(f"{tmp_path / 'program.py'}:loss")


@pytest.mark.parametrize("reader", ["read_toml", "Options.from_toml"])
def test_the_null_device_is_an_empty_file(reader: str) -> None:
    READERS[reader](Path(os.devnull))


@pytest.mark.parametrize("path", ["/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"])
def test_standard_input_may_be_a_pipe(path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"there is no {path}")
    script = f"from opstage import Options; print(Options.from_toml({path!r}).seed)\n"
    done = subprocess.run(
        [sys.executable, "-c", script], input="[options]\nseed = 7\n", capture_output=True, text=True, check=True
    )
    assert done.stdout == "7\n"
