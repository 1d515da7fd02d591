"""A save that fails, or whose machine loses power, at any call by which it reaches the disk."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typing_extensions import override

from opstage.files import Disk, WriteError, write_file
from opstage.ops.errors import UsageError
from opstage.training.checkpoint import MANIFEST, Snapshot, load, save
from opstage.training.snapshot import TrainerValues
from tests.training.same import run_bits


class PowerLoss(BaseException):
    """The machine stops: nothing that comes after it is done."""


class TestDisk(Disk):
    """Counts its calls and lets the N-th one fail. It knows what a loss of power would take.

    Writes are cut into pieces. A file's bytes are lost unless the file was synced, and a rename is undone, or a new
    name gone, unless the folder was synced after it.
    """

    __test__ = False

    def __init__(self, at: int = 0, failure: Callable[[], BaseException] = PowerLoss, *, half: bool = True):
        self.calls: list[str] = []
        self.at, self.failure, self.half = at, failure, half
        self.down = False
        self._paths: dict[int, Path] = {}
        self._unsynced: set[Path] = set()
        self._undo: list[Callable[[], None]] = []

    def _call(self, name: str) -> None:
        if self.down:
            raise PowerLoss
        self.calls.append(name)
        if len(self.calls) == self.at:
            error = self.failure()
            self.down = isinstance(error, PowerLoss)
            raise error

    def lose_power(self) -> None:
        """Take from the disk all that was not synced."""
        for path in self._unsynced:
            if path.exists():
                path.write_bytes(b"")
        for undo in reversed(self._undo):
            undo()

    @override
    def create(self, path: Path) -> int:
        self._call("create")
        file = super().create(path)
        self._paths[file] = path
        self._unsynced.add(path)
        return file

    @override
    def write(self, file: int, data: memoryview) -> int:
        if self.half and not self.down and len(self.calls) + 1 == self.at:
            super().write(file, data[:3])
        self._call("write")
        return super().write(file, data[:150])

    @override
    def sync(self, file: int) -> None:
        self._call("sync")
        super().sync(file)
        self._unsynced.discard(self._paths[file])

    @override
    def close(self, file: int) -> None:
        super().close(file)
        self._call("close")

    @override
    def rename(self, source: Path, target: Path) -> None:
        self._call("rename")
        old = target.read_bytes() if target.exists() else None
        super().rename(source, target)
        if source in self._unsynced:
            self._unsynced = self._unsynced - {source} | {target}
        self._undo.append(lambda: target.unlink(missing_ok=True) if old is None else put(target, old))

    @override
    def sync_folder(self, folder: Path) -> None:
        self._call("sync_folder")
        super().sync_folder(folder)
        self._undo.clear()

    @override
    def make_folder(self, folder: Path) -> None:
        self._call("make_folder")
        super().make_folder(folder)

    @override
    def remove(self, path: Path) -> None:
        self._call("remove")
        super().remove(path)


def put(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def snapshot(number: int) -> Snapshot:
    return Snapshot(TrainerValues({"w": np.full(40, float(number)), "b": np.arange(3.0) + number}), versions={})


OLD, NEW = run_bits(snapshot(1)), run_bits(snapshot(2))


def calls_of_a_save(folder: Path) -> list[str]:
    disk = TestDisk()
    save(folder, snapshot(1))
    save(folder, snapshot(2), disk=disk)
    shutil.rmtree(folder)
    return disk.calls


def test_the_calls_of_a_save(tmp_path: Path) -> None:
    calls = calls_of_a_save(tmp_path / "run")
    order = [call for i, call in enumerate(calls) if call != "write" or calls[i - 1] != "write"]
    once = ["create", "write", "sync", "close", "rename", "sync_folder"]
    assert order == [*once, *once, "remove"]
    assert calls.count("write") >= 8


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("first", [False, True], ids=["second save", "first save"])
@pytest.mark.parametrize("failure", [no_space, broken, KeyboardInterrupt, PowerLoss])
def test_a_failure_at_every_call(tmp_path: Path, failure: Callable[[], BaseException], first: bool) -> None:
    calls = calls_of_a_save(tmp_path / "run")
    seen = set()
    for at in range(1, len(calls) + (2 if first else 1)):
        folder = tmp_path / f"{at}"
        if not first:
            save(folder, snapshot(1))
        before = sorted(path.name for path in folder.iterdir()) if folder.exists() else []
        disk = TestDisk(at, failure)
        try:
            save(folder, snapshot(2), disk=disk)
        except (UsageError, KeyboardInterrupt, PowerLoss) as error:
            found = found_in(folder)
            assert found in ((None, NEW) if first else (OLD, NEW))
            if isinstance(error, WriteError):
                assert "cannot be written: " in str(error)
                assert (found == NEW) == (error.replaced and MANIFEST in str(error))
            if failure is not PowerLoss and found != NEW:
                assert sorted(path.name for path in folder.iterdir()) == before if folder.exists() else before == []
        else:
            assert len(disk.calls) < at or disk.calls[at - 1] == "remove"
            found = found_in(folder)
            assert found == NEW
        seen.add(found == NEW)
        save(folder, snapshot(3))
        assert found_in(folder) == run_bits(snapshot(3))
        assert len(list(folder.iterdir())) == 2
    assert seen == {False, True}


@pytest.mark.parametrize("failure", [broken, PowerLoss])
@pytest.mark.parametrize("first", [False, True], ids=["second save", "first save"])
def test_power_lost_after_a_failure_at_every_call(
    tmp_path: Path, failure: Callable[[], BaseException], first: bool
) -> None:
    for at in range(1, len(calls_of_a_save(tmp_path / "run")) + 2):
        folder = tmp_path / f"{at}"
        if not first:
            save(folder, snapshot(1))
        disk = TestDisk(at, failure)
        done = False
        try:
            save(folder, snapshot(2), disk=disk)
            done = True
        except (UsageError, PowerLoss):
            pass
        disk.lose_power()
        assert found_in(folder) in ((NEW,) if done else (None, NEW) if first else (OLD, NEW))


def found_in(folder: Path) -> object:
    if not (folder / MANIFEST).exists():
        return None
    return run_bits(load(folder))


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (errno.ENOSPC, "No space left on device; nothing was changed; make room on the disk and try again"),
        (errno.EACCES, "Permission denied; nothing was changed; choose a folder that you may write to"),
        (errno.EROFS, "Read-only file system; nothing was changed; choose a folder that you may write to"),
        (errno.EIO, "Input/output error; nothing was changed"),
    ],
)
def test_messages(tmp_path: Path, code: int, message: str) -> None:
    disk = TestDisk(1, lambda: OSError(code, os.strerror(code)))
    with pytest.raises(UsageError) as error:
        save(tmp_path, snapshot(1), disk=disk)
    assert str(error.value).startswith(f"{tmp_path}/tensors-")
    assert str(error.value).endswith(f".safetensors: cannot be written: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError, match=r"cannot be written: .*a part of this path is a file, not a folder"):
            save(folder, snapshot(1))
    with pytest.raises(UsageError, match="run: cannot be written: Permission denied"):
        save(tmp_path / "run", snapshot(1), disk=TestDisk(1, lambda: OSError(errno.EACCES, "Permission denied")))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_real_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """The kernel itself refuses the write half-way."""
    save(tmp_path, snapshot(1))
    program = """
import resource, signal, sys
from tests.training.test_checkpoint_failures import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
try:
    save(sys.argv[1], snapshot(2))
except UsageError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, cwd=os.getcwd()
    )
    assert "cannot be written: File too large; nothing was changed" in done.stdout
    assert found_in(tmp_path) == OLD
    assert len(list(tmp_path.iterdir())) == 2
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY


def test_any_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_file(path, [b"old"])
    with pytest.raises(UsageError):
        write_file(path, [b"ne", b"w"], disk=TestDisk(3, no_space))
    assert path.read_bytes() == b"old"
    write_file(path, [b"ne", b"w"])
    assert path.read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 1
