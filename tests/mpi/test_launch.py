"""`opstage launch`: runs, bad input, Ctrl-C, restarts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from opstage.cli import launch
from tests.mpi.started import ENVIRONMENT, PATIENCE, ROOT, ended, opstage, start

TRAIN = ("train", "mlp", "--mesh", "data=4", "--batch-size", "64")
COMMAND = (sys.executable, "-P", "-c", "from opstage.cli import main; main()")


def weights(run: Path) -> list[str]:
    """The files of a run's tensors, which are called by their digests."""
    return sorted(path.name for path in (run / "checkpoint").glob("*.safetensors"))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    run = tmp_path_factory.mktemp("alone") / "run"
    opstage(*TRAIN, "--epochs", "2", "--out", str(run)).well()
    return weights(run)


def test_a_run_is_that_of_one_process(tmp_path: Path, undisturbed: list[str]) -> None:
    run = tmp_path / "run"
    done = opstage("launch", "-n", "2", *TRAIN, "--epochs", "2", "--out", str(run)).well()
    assert weights(run) == undisturbed
    assert done.said.count("saved in") == 1
    again = opstage("launch", "-n", "2", *TRAIN, "--epochs", "2", "--out", str(run))
    assert (again.code, again.said.count("opstage: ")) == (2, 1), again.said


def launched_with(variables: dict[str, str | None], *words: str) -> tuple[int, str]:
    """A command on two processes, with other variables; its output is no terminal."""
    environment = {name: value for name, value in {**ENVIRONMENT, **variables}.items() if value is not None}
    words = (*COMMAND, "launch", "-n", "2", *TRAIN, *words)
    done = subprocess.run(
        words, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("home", [None, ""])
def test_what_is_no_terminal_gets_lines_and_no_home_is_needed(home: str | None) -> None:
    """mpiexec gives its processes a pseudo-terminal, on which a run would draw its bar."""
    code, said = launched_with({"HOME": home}, "--epochs", "2")
    assert code == 0 and "\nepoch 2/2  loss" in said, said
    assert "\x1b" not in said and "\r" not in said


@pytest.mark.parametrize("value", ["0", "nan", "99999999999"])
def test_a_malformed_timeout_is_one_error(value: str) -> None:
    code, said = launched_with({"OPSTAGE_TIMEOUT": value})
    assert code == 2 and "environment variable OPSTAGE_TIMEOUT: " in said and "Traceback" not in said, said
    assert said.count("opstage: ") == 1, said


def test_a_checkpoint_may_be_replaced_while_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "new").write_text("")
    monkeypatch.setattr(Path, "iterdir", lambda path: iter([path / "old", path / "new"]))
    assert [name for name, _ in launch._checkpoint(tmp_path) or ()] == ["new"]


@pytest.mark.parametrize("zero", ["2", "3"])
def test_what_each_process_keeps_a_part_of_is_saved_whole(tmp_path: Path, undisturbed: list[str], zero: str) -> None:
    """All of them make a checkpoint, one writes it; and one that shares nothing out goes on from it. The report, too,
    shows what the whole model makes of held-out data."""
    run = tmp_path / "run"
    opstage("launch", "-n", "2", *TRAIN, "--zero", zero, "--epochs", "2", "--out", str(run)).well()
    assert weights(run) == undisturbed
    assert 'id="confusion"' in (run / "report.html").read_text()


@pytest.mark.parametrize(
    "words, said",
    [
        (("-n", "2", "train", "mlp", "--mesh", "data4"), "'data4' is not an axis"),
        (("-n", "3", *TRAIN), "has 4 ranks, which 3 processes cannot host in equal numbers"),
        (("-n", "2", "train", "mlp"), "there is no mesh, so there is one rank, but 2 processes were started"),
        (("-n", "2", *TRAIN, "--batch-size", "66"), "4 ranks cannot share batches of 66 samples equally"),
        (("-n", "2", *TRAIN, "--data", "no-such.npz"), "no-such.npz"),
        (("-n", "2", *TRAIN, "--epochz", "3"), "No such option"),
        (("-n", "2", *TRAIN, "--options.timeout", "0"), "0 is not a number of seconds"),
        (("-n", "2", "--restarts", "1", *TRAIN), "give the run a directory"),
    ],
)
def test_bad_input_is_said_once(words: tuple[str, ...], said: str) -> None:
    done = opstage("launch", *words)
    done.refused(said)


def begun(process: subprocess.Popen[str], run: Path, steps: int) -> None:
    """Wait until a run has taken so many steps."""
    while process.poll() is None:
        log = run / "metrics.jsonl"
        if log.exists() and len(log.read_text().splitlines()) >= steps:
            return
    raise AssertionError(ended(process).said)


LONG = (*TRAIN, "--epochs", "12", "--run.log_every", "1", "--run.checkpoint_every", "5")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The weights of the long run, on one process that nobody disturbs."""
    run = tmp_path_factory.mktemp("whole") / "run"
    opstage(*LONG, "--out", str(run)).well()
    return weights(run)


def test_ctrl_c_saves_after_a_step_and_the_run_goes_on(tmp_path: Path, whole: list[str]) -> None:
    run = tmp_path / "run"
    process = start(*COMMAND, "launch", "-n", "2", *LONG, "--out", str(run))
    begun(process, run, 3)
    process.send_signal(signal.SIGINT)
    stopped = ended(process)
    assert stopped.code == 130, stopped.said
    assert stopped.said.count("saved; opstage train --resume") == 1
    opstage("launch", "-n", "4", "train", "--resume", str(run)).well()
    assert weights(run) == whole


def children(of: int) -> list[int]:
    """The processes that descend from one, those that have no children of their own last."""
    below: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            below.setdefault(int(path.read_text().rpartition(")")[2].split()[1]), []).append(int(path.parent.name))
    found = [*below.get(of, ())]
    for child in found:
        found += below.get(child, ())
    return found


def test_a_killed_process_is_restarted_from_the_checkpoint(tmp_path: Path, whole: list[str]) -> None:
    run = tmp_path / "run"
    process = start(*COMMAND, "launch", "-n", "2", "--restarts", "1", *LONG, "--out", str(run))
    begun(process, run, 8)
    os.kill(children(process.pid)[-1], signal.SIGKILL)
    done = ended(process).well()
    assert "has died" in done.said and "continues from" in done.said
    assert weights(run) == whole
