"""Files that are written whole: nothing that waits under a name near theirs is written to, followed or removed."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

import opstage
from opstage import UsageError
from opstage.files import TEMPORARY, write_file
from opstage.runs.directory import LOCK, RunDirectory
from opstage.runs.metrics_log import MetricLog

if not hasattr(os, "O_NOFOLLOW"):
    pytest.skip("a system without links that could be planted", allow_module_level=True)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file outside of the folder that is written to."""
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "out").mkdir()
    return tmp_path / "mine"


@pytest.mark.parametrize("name", ["w.safetensors", "x" * 255, "ä" * 127, "a b\n.c", ".tmp"])
def test_links_under_names_that_could_be_guessed_are_left_alone(mine: Path, name: str) -> None:
    out = mine.parent / "out"
    planted = [out / guess for guess in (f".{name}.tmp", f"{name}.tmp", f".{name}") if len(guess.encode()) < 256]
    for link in planted:
        link.symlink_to(mine)
    write_file(out / name, [b"new"])
    assert (out / name).read_bytes() == b"new" and not (out / name).is_symlink()
    assert mine.read_text() == "mine" and all(link.is_symlink() for link in planted)
    assert len(list(out.iterdir())) == 1 + len(planted)


def test_a_link_in_the_place_of_a_file_is_replaced_and_not_followed(mine: Path) -> None:
    target = mine.parent / "out" / "w"
    target.symlink_to(mine)
    write_file(target, [b"new"])
    assert (mine.read_text(), target.read_bytes(), target.is_symlink()) == ("mine", b"new", False)


def test_a_name_that_was_guessed_is_not_written_to(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda count: "0" * 2 * count)
    out = mine.parent / "out"
    (out / (".w." + "0" * 16 + ".tmp")).symlink_to(mine)
    with pytest.raises(UsageError, match="nothing was changed"):
        write_file(out / "w", [b"new"])
    assert mine.read_text() == "mine" and not (out / "w").exists()


def test_temporary_names_differ_and_are_short(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    rename = os.replace
    monkeypatch.setattr(os, "replace", lambda a, b: (seen.append(os.path.basename(a)), rename(a, b)))
    for _ in range(3):
        write_file(mine.parent / "out" / ("ä" * 120), [b"new"])
    assert len(set(seen)) == 3
    assert all(TEMPORARY.fullmatch(name) and len(name.encode()) < 255 for name in seen)


def test_whoever_writes_uses_it(mine: Path) -> None:
    out = mine.parent / "out"
    graph = opstage.record(lambda ops, x: ops.exp(x), np.ones(3))
    for name, write in {"g.safetensors": graph.save, "g.onnx": graph.to_onnx}.items():
        for link in (out / f".{name}.tmp", out / name):
            link.symlink_to(mine)
        write(out / name)
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("name", [LOCK])
def test_a_lock_that_is_a_link_is_an_error(mine: Path, name: str) -> None:
    (mine.parent / "out" / name).symlink_to(mine)
    with pytest.raises(UsageError, match=re.escape(name) + ".*it is a link"):
        RunDirectory.create(mine.parent / "out")
    assert mine.read_text() == "mine"


def test_metrics_are_appended_to_the_file_itself(mine: Path) -> None:
    path = mine.parent / "out" / "metrics.jsonl"
    MetricLog(path).close()
    path.unlink()
    path.symlink_to(mine)
    mine.write_text("")
    log = MetricLog(path)  # replaces the link
    log.append({"kind": "step", "step": 1})
    log.close()
    assert mine.read_text() == "" and not path.is_symlink()


def test_a_resumed_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    (tmp_path / ".report.html.0123456789abcdef.tmp").write_text("half")
    (tmp_path / ".mine.tmp").write_text("mine")
    RunDirectory.reopen(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".mine.tmp", "config.toml"]
