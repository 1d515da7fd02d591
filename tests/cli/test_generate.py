"""`opstage generate`: what a file gets of a text, and what a terminal."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from opstage.cli import predict as command
from opstage.cli.main import main

HOSTILE = {
    "colour": (b"a\x1b[31mb", r"a\x1b[31mb"),
    "title of the window": (b"\x1b]0;owned\x07", r"\x1b]0;owned\x07"),
    "a C1 introducer": ("\x9b2J".encode(), r"\x9b2J"),
    "its byte alone": (b"\x9b2J", "�2J"),
    "over what stands there": (b"good\rbad\x08\x08", r"good\rbad\x08\x08"),
    "from right to left": ("\u202egnp.exe".encode(), r"\u202egnp.exe"),
    "no UTF-8": (b"\xff\xfe\x80", "���"),
    "cut short": ("é".encode()[:1], "�"),
    "nul and delete": (b"\0\x7f", r"\x00\x7f"),
    "text": ("def f(x):\n\treturn 'é→😀'\n".encode(), "def f(x):\n\treturn 'é→😀'\n"),
}


class Stdout(io.TextIOWrapper):
    """Standard output, on a terminal or not."""

    def __init__(self, terminal: bool):
        super().__init__(io.BytesIO(), encoding="utf-8", newline="")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    def written(self) -> bytes:
        self.flush()
        buffer: Any = self.buffer
        return bytes(buffer.getvalue())


def written(monkeypatch: pytest.MonkeyPatch, text: bytes, prompt: bytes, *, terminal: bool) -> bytes:
    def made(*_: Any, **__: Any) -> Iterator[int]:
        return iter(text)

    monkeypatch.setattr(command, "load_gpt", lambda *_: (None, None))
    monkeypatch.setattr(command, "generated", made)
    stdout = Stdout(terminal)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "argv", ["opstage", "generate", "run", "--prompt", os.fsdecode(prompt)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    return stdout.written()


@pytest.mark.parametrize("case", HOSTILE)
@pytest.mark.parametrize("as_prompt", [False, True])
def test_a_terminal_obeys_nothing_of_a_text(case: str, as_prompt: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    data, shown = HOSTILE[case]
    text, prompt = (b"", data.replace(b"\0", b"")) if as_prompt else (data, b"")
    out = written(monkeypatch, text, prompt, terminal=True).decode()
    assert out == (shown.replace(r"\x00", "") if as_prompt else shown) + "\n"


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_gets_the_bytes(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, _ = HOSTILE[case]
    assert written(monkeypatch, data, b">\xff\x1b", terminal=False) == b">\xff\x1b" + data + b"\n"
