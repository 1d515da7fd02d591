"""The command as a person at a terminal sees it: words in, exit code and two streams out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from opstage.cli.main import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def opstage(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Command:
    """Run the command in an empty directory; its exit code, output and error output."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("caches")))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["opstage", *words])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        assert isinstance(end.value.code, int)
        return end.value.code, out, err

    return run
