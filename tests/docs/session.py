"""`python -m tests.docs.session`: the examples of the API's pages, run one by one, each in a folder of its own.

Prints the names of those that do not answer as is written, with what they answer. `--write` writes that down.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.docs.blocks import DOCS, blocks

EXAMPLES = DOCS / "api" / "examples"
_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


def read(file: Path) -> list[tuple[str, list[str]]]:
    """The names of a file's examples, each with its lines."""
    # an answer of several paragraphs would end its block, so no example has one
    found = [block.split("\n") for block in file.read_text(encoding="utf-8").strip().split("\n\n")]
    return [(name, lines) for name, *lines in found]


def answered(lines: list[str], **known: Any) -> list[str]:
    """The lines of an example with the answers that it gives now; `known` stands in the place of names of its own."""
    statements: list[list[str]] = []
    for line in lines:
        if line.startswith(">>> "):
            statements.append([line])
        elif line.startswith("..."):
            statements[-1].append(line)
    (first, *_) = [block.text for block in blocks(DOCS / "api" / "programs.md") if block.language == "python"]
    names: dict[str, Any] = {"__name__": "examples"}
    found, here = [], Path.cwd()
    with tempfile.TemporaryDirectory() as folder, np.printoptions():  # which the first example sets
        os.chdir(folder)
        try:
            exec(first, names)
            names |= known
            for statement in statements:
                said = io.StringIO()
                with contextlib.redirect_stdout(said):
                    exec(compile("\n".join(line[4:] for line in statement) + "\n", "<example>", "single"), names)
                found += [*statement, *[line for line in said.getvalue().split("\n") if line]]
        finally:
            os.chdir(here)
    return found


def alike(expected: list[str], found: list[str]) -> bool:
    """Whether two answers are the same but for spaces and the last digits of numbers."""
    one, other = ["".join("\n".join(lines).split()) for lines in (expected, found)]
    numbers = [[float(number) for number in _NUMBER.findall(text)] for text in (one, other)]
    return _NUMBER.sub("#", one) == _NUMBER.sub("#", other) and all(
        abs(a - b) <= 2e-4 * max(1.0, abs(a)) for a, b in zip(*numbers, strict=True)
    )


def main(write: bool) -> int:
    """0 where all examples answer as is written."""
    wrong = 0
    for file in sorted(EXAMPLES.glob("*.txt")):
        made = []
        for name, lines in read(file):
            try:
                found = answered(lines)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}")
                wrong += 1
                continue
            if not alike(lines, found):
                print("\n".join([f"{name} answers", *found]))
                wrong += 1
            made.append("\n".join([name, *found]))
        if write:
            file.write_text("\n\n".join(made) + "\n", encoding="utf-8")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv))
