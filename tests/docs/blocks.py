"""The code blocks of a document, and running what they say."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.processes import address, python

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r"# (\S+\.\w+)(?:, (.+))?\n")


@dataclass(frozen=True)
class Block:
    """A fenced block; a first line `# path, place` says where it belongs, and is not part of the text."""

    language: str
    text: str
    path: str = ""
    place: str = ""


def blocks(document: Path) -> list[Block]:
    """All fenced blocks of a document in order."""
    found = []
    for match in _FENCE.finditer(document.read_text()):
        language, text = match.groups()
        place = _PLACE.match(text)
        if place is None:
            found.append(Block(language, text))
        else:
            found.append(Block(language, text[place.end() :], place[1], place[2] or ""))
    return found


def outputs(document: Path) -> dict[str, str]:
    """Scripts that a document shows with what they print: path -> the `text` block right after the script's own."""
    every = blocks(document)
    return {a.path: b.text for a, b in itertools.pairwise(every) if a.path and b.language == "text" and not b.path}


def run_python(*arguments: str, cwd: Path, path: list[Path]) -> str:
    """What `python *arguments` prints, with `path` before all else; an AssertionError shows it when it fails."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPSTAGE_")}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, path))
    if ROOT in path and arguments[0] not in ("-m", "-W"):
        done = python(*arguments, cwd=cwd, env=environment)
    else:  # of another Opstage, or with options
        words = [sys.executable, *arguments]
        done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


BETWEEN = "\x1e"
_COMMAND = """
import shlex
from tests.processes import COMMAND, python
for line in {text!r}.replace("\\\\\\n", " ").splitlines():
    name, *words = shlex.split(line)
    assert name == "opstage", line
    words = [*COMMAND, *words]
    done = python(*words, server={server!r})
    print(done.stdout + done.stderr, end="")
"""


@dataclass(frozen=True)
class Step:
    """A block that is run, `python` or `sh`, and what the `text` block right after it says that it prints."""

    language: str
    code: str
    printed: str


def steps(document: Path) -> list[Step]:
    """The blocks of a document that are run, in order: those that are not files of their own."""
    every = [*blocks(document), None]
    return [
        Step(block.language, block.text, after.text if after is not None and after.language == "text" else "")
        for block, after in itertools.pairwise(every)
        if block is not None and block.language in ("python", "sh") and not block.path
    ]


def run_steps(document: Path, folder: Path, name: str = "model.py") -> list[str]:
    """What each step prints, all of them run as the one file `name`, in one namespace, in the empty `folder`.

    Blocks of Python that are files of their own, `# classifier.py`, lie in the folder.
    """
    for block in blocks(document):
        if block.language == "python" and block.path:
            (folder / block.path).write_text(f"# {block.path}\n{block.text}")
    parts = [
        step.code if step.language == "python" else _COMMAND.format(text=step.code, server=address())
        for step in steps(document)
    ]
    (folder / name).write_text(f"print({BETWEEN!r}, end='')\n".join(parts))
    return run_python(name, cwd=folder, path=[ROOT]).split(BETWEEN)
