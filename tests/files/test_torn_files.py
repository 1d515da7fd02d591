"""Whatever is raised between any two bytecodes of a save, a later load finds the old checkpoint or the new one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from opstage.files import Disk
from opstage.runs.directory import CONFIG, RunDirectory
from opstage.training.checkpoint import load, save
from opstage.training.fit import Position
from tests.searches import share
from tests.training.raising import RaiseAt, Torn, bytecodes, moments
from tests.training.same import same_snapshot
from tests.training.test_checkpoint import snapshot

SAVING = ("training/checkpoint", "training/snapshot", "files", "tensors", "runs/directory")


class Unsynced(Disk):
    """A disk that is believed to hold what it was given."""

    def sync(self, file: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


def check_saves(tmp_path: Path, *, around: int, spread: int) -> None:
    old = snapshot()
    new = replace(snapshot(4), position=Position(2, 0))
    disk = Unsynced()
    save(tmp_path / "counted", old, disk=disk)
    count = bytecodes(lambda: save(tmp_path / "counted", new, disk=disk), SAVING)

    def ends(n: int) -> bool:
        folder = tmp_path / "run"
        save(folder, old, disk=disk)
        with suppress(Torn), RaiseAt(n, SAVING):
            save(folder, new, disk=disk)
        found = load(folder)
        changed = found.position == new.position
        same_snapshot(found, new if changed else old)
        save(folder, new, disk=disk)
        assert sum(path.suffix == ".safetensors" for path in folder.iterdir()) == 1, "the next save clears up"
        return changed

    assert {ends(n) for n in moments(count, ends, around=around, spread=spread)} == {False, True}


def test_a_save_is_whole_or_has_not_been(tmp_path: Path) -> None:
    check_saves(tmp_path, around=15, spread=15)


@pytest.mark.slow
@pytest.mark.soak
def test_a_save_is_whole_or_has_not_been_at_every_bytecode(tmp_path: Path) -> None:
    check_saves(tmp_path, around=share(3000), spread=share(3000))


def test_a_directory_that_was_being_made_or_reopened_can_be_had_again(tmp_path: Path) -> None:
    def make(folder: Path) -> None:
        RunDirectory.create(folder).close()

    count = bytecodes(lambda: make(tmp_path / "counted"), SAVING)
    for n in range(1, count + 1, 3):
        folder = tmp_path / f"run {n}"
        with suppress(Torn), RaiseAt(n, SAVING):
            make(folder)
        # what holds the lock of a run that did not come about goes with the exception that ended it
        make(folder)
        (folder / CONFIG).write_text("")
        RunDirectory.reopen(folder).close()
