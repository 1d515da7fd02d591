"""Standard output that fails while a command runs: a kept run goes on, any other command ends as SIGPIPE ends one."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from opstage.cli.commands import cli
from opstage.cli.exit_codes import UNHEARD
from opstage.runs.directory import CHECKPOINT, METRICS, REPORT
from opstage.runs.metrics_log import read_metrics
from opstage.training import checkpoint
from tests.processes import COMMAND

SMALL = ["train", "mlp", "--model.hidden", "8", "--epochs", "2", "--batch-size", "128", "--run.plot", "false"]


def failing(monkeypatch: pytest.MonkeyPatch, number: int, after: int) -> None:
    """Standard output fails from its `after`-th line on."""
    echo, lines = click.echo, [0]

    def fails(message: Any = None, *rest: Any, err: bool = False, **more: Any) -> None:
        lines[0] += not err
        if not err and lines[0] > after:
            raise OSError(number, os.strerror(number))
        echo(message, *rest, err=err, **more)

    monkeypatch.setattr(click, "echo", fails)


@pytest.mark.parametrize("number", [errno.EPIPE, errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("after", range(5))
def test_a_kept_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, after: int) -> None:
    failing(monkeypatch, number, after)
    run = CliRunner().invoke(cli, [*SMALL, "--out", str(tmp_path / "run")], standalone_mode=False)
    assert run.exception is None and run.return_value == 0
    assert run.stderr.count("no more output") == 1 and "is saved in" in run.stderr
    assert len(run.stdout.splitlines()) == after
    assert len(checkpoint.load(tmp_path / "run" / CHECKPOINT).position.results) == 2
    assert "Finished" in (tmp_path / "run" / REPORT).read_text()
    assert [line["epoch"] for line in read_metrics(tmp_path / "run" / METRICS) if line["kind"] == "epoch"] == [0, 1]


@pytest.mark.parametrize("after", range(5))
def test_a_run_that_nobody_keeps_ends(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    failing(monkeypatch, errno.EPIPE, after)
    run = CliRunner().invoke(cli, SMALL, standalone_mode=False)
    assert run.return_value == UNHEARD == 141
    assert len(run.stdout.splitlines()) == after and run.stderr == ""


def piped(*words: str) -> tuple[int, str, str]:
    """Exit code, first line and standard error of a command whose output is read to the end of that line."""
    process = subprocess.Popen(
        [sys.executable, *COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    first = process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    return process.wait(), first, said


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "not kept"])
def test_a_pipe_that_is_closed(tmp_path: Path, kept: bool) -> None:
    out = tmp_path / "run"
    code, first, said = piped(*SMALL, *(["--out", str(out)] if kept else []))
    assert first.startswith("mlp: ")
    assert "Traceback" not in said and "Exception ignored" not in said
    if kept:
        assert code == 0 and said.count("\n") == 1
        assert len(checkpoint.load(out / CHECKPOINT).position.results) == 2
    else:
        assert (code, said) == (141, "")


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ("x" * 300, "File name too long"),
        ("/".join(["y" * 200] * 30), "File name too long"),
        (os.fsdecode(b"\xff"), "not a path in UTF-8"),
        ("a\nb", "cannot be shown"),
        ("a\x1b[31m", "cannot be shown"),
    ],
)
@pytest.mark.parametrize("flag", ["--out", "--resume"])
def test_directories_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, message: str, flag: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, flag, out] if flag == "--out" else ["train", flag, out]
    run = CliRunner().invoke(cli, words, standalone_mode=False)
    assert isinstance(run.exception, ValueError), "UsageError is one"
    assert flag == "--resume" or message in str(run.exception)
    assert list(tmp_path.iterdir()) == []
