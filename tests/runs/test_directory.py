"""The run directory: one writer at a time, whole files or none, one clear error for what cannot be written."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from opstage.ops.errors import UsageError
from opstage.runs.charts import Curves
from opstage.runs.directory import CONFIG, LOCK, RunDirectory
from opstage.runs.metrics_log import MetricLog, read_metrics

HOLD = """
import sys
from pathlib import Path
from opstage.runs.charts import Curves
from opstage.runs.directory import RunDirectory
held = RunDirectory.create(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


def test_a_directory_is_made_with_its_parents_and_let_go_again(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a"
    with RunDirectory.create(path) as directory:
        assert (path / LOCK).read_text() == f"{os.getpid()}\n"
        directory.write("x.txt", "hello")
    assert sorted(p.name for p in path.iterdir()) == ["x.txt"]
    assert (path / "x.txt").read_text() == "hello"


def test_two_runs_cannot_hold_one_directory(tmp_path: Path) -> None:
    with (
        RunDirectory.create(tmp_path),
        pytest.raises(UsageError, match=rf"is being written by .*process {os.getpid()}"),
    ):
        RunDirectory.create(tmp_path)
    RunDirectory.create(tmp_path).close()


def test_another_process_is_named_and_what_it_leaves_when_killed_is_taken_over(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=f"is being written by another run, process {holder.pid}$"):
            RunDirectory.create(tmp_path)
    finally:
        holder.kill()
        holder.communicate()
    assert (tmp_path / LOCK).exists()
    with RunDirectory.create(tmp_path):
        assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"


def test_a_directory_with_a_run_is_reopened_and_not_started_again(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be resumed: config\.toml is missing"):
        RunDirectory.reopen(tmp_path)
    (tmp_path / CONFIG).write_text("")
    with pytest.raises(UsageError, match="holds a run already; continue it with --resume"):
        RunDirectory.create(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [CONFIG]
    RunDirectory.reopen(tmp_path).close()


def test_an_abandoned_run_leaves_nothing_behind(tmp_path: Path) -> None:
    made = RunDirectory.create(tmp_path / "new")
    made.write("config.toml", "x")
    made.write("checkpoint/tensors", "x")
    made.abandon()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine.txt").write_text("keep")
    found = RunDirectory.create(tmp_path)
    found.write("config.toml", "x")
    found.abandon()
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_a_path_that_cannot_be_a_directory_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "run", tmp_path / "file", Path("/proc/opstage-run")):
        with pytest.raises(UsageError, match="cannot be written"):
            RunDirectory.create(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_takes_a_new_directory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UsageError, match="No space left on device"):
        RunDirectory.create(tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


STEP = {"kind": "step", "step": 10, "epoch": 0, "loss": 1.5}
EPOCH = {"kind": "epoch", "step": 12, "epoch": 0, "train_loss": 1.25, "held_out": {"loss": 1.0}}


def logged(path: Path, *lines: dict[str, object]) -> list[dict[str, Any]]:
    log = MetricLog(path)
    for each in lines:
        log.append(each)
    log.close()
    return read_metrics(path)


def test_lines_are_read_back_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    assert logged(tmp_path / "a.jsonl", STEP, EPOCH) == [STEP, EPOCH]
    infinite = {**STEP, "loss": float("nan")}, {**EPOCH, "held_out": {"loss": float("inf")}}
    step, epoch = logged(tmp_path / "b.jsonl", *infinite)
    assert (step["loss"], epoch["held_out"]) == (None, {"loss": None})
    (panel,) = Curves([step, epoch]).panels()
    assert [curve.points for curve in panel.curves] == [((12, 1.25),)]


@pytest.mark.parametrize(
    ("steps", "epochs", "kept"),
    [(0, 0, []), (9, 0, []), (10, 0, [STEP]), (12, 0, [STEP]), (12, 1, [STEP, EPOCH]), (14, 1, [STEP, EPOCH])],
)
def test_what_a_checkpoint_does_not_know_of_is_dropped(
    tmp_path: Path, steps: int, epochs: int, kept: list[object]
) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (STEP, EPOCH)) + '{"kind": "st')
    MetricLog(path, steps=steps, epochs=epochs).close()
    assert read_metrics(path) == kept


def test_a_line_that_does_not_fit_on_the_disk_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.jsonl"
    log = MetricLog(path)
    log.append(STEP)
    write = os.write
    left = [5]

    def nearly_full(file: int, data: memoryview) -> int:
        if not left[0]:
            full()
        count = write(file, data[: left[0]])
        left[0] -= count
        return count

    monkeypatch.setattr(os, "write", nearly_full)
    with pytest.raises(UsageError, match="No space left on device"):
        log.append(EPOCH)
    monkeypatch.undo()
    log.close()
    assert read_metrics(path) == [STEP]


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_text(json.dumps(STEP) + "\nnonsense\n")
    with pytest.raises(UsageError, match=r"m\.jsonl:2: not a line of JSON"):
        read_metrics(path)
