"""A run directory of another version is said on one line, and one of another format is an error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from .conftest import Command


@pytest.fixture
def run(opstage: Command, tmp_path: Path) -> Path:
    assert opstage("train", "mlp", "--epochs", "1", "--model.hidden", "4", "--out", "run")[0] == 0
    return tmp_path / "run"


def _describe(run: Path, key: str, value: Any) -> None:
    described = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**described, key: value}))


@pytest.mark.filterwarnings("error")
def test_another_version_is_said_once(run: Path, opstage: Command) -> None:
    assert "Opstage" not in opstage("evaluate", "run")[2]
    _describe(run, "versions", {"opstage": "9.9.9"})
    for words in (["evaluate", "run"], ["graph", "run"], ["train", "--resume", "run", "--epochs", "2"]):
        code, out, err = opstage(*words)
        assert (code, (out + err).count("run was started with Opstage 9.9.9 and this is ")) == (0, 1), words


def test_another_format_is_an_error(run: Path, opstage: Command) -> None:
    _describe(run, "format", 2)
    for words in (["evaluate", "run"], ["train", "--resume", "run"], ["report", "run"]):
        code, _, err = opstage(*words)
        assert (code, err.count("\n")) == (2, 1), words
        assert "run.json: is of format 2, written by Opstage 0." in err
