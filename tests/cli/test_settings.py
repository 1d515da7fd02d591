"""`opstage train` and `check`: where settings come from, as a person at a terminal sees it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from opstage.distributed.processes import TERMINAL
from opstage.runs.progress import Bar, make_watcher
from opstage.training.fit import EpochResult
from tests.cli.conftest import Command
from tests.processes import COMMAND

TINY = ["--epochs", "1", "--model.hidden", "8", "--batch-size", "256"]


def shown(text: str) -> dict[str, tuple[str, str]]:
    """Value and origin by dotted path, from what --print-config prints."""
    table, found = "", {}
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[]")
        elif line:
            assignment, _, origin = line.partition("  # ")
            key, _, value = assignment.partition(" = ")
            found[f"{table}.{key}"] = value.strip(), origin
    return found


def test_the_merged_configuration_names_every_source(
    opstage: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "s.toml").write_text(
        '[run]\nmodel = "mlp"\n[optimizer]\nlr = 0.5\nname = "adam"\n[options]\nseed = 1\n'
    )
    monkeypatch.setenv("OPSTAGE_SEED", "2")
    monkeypatch.setenv("OPSTAGE_DTYPE", "float64")
    words = ["--config", "s.toml", "--lr", "0.25", "--model.dropout=0", "--model.hidden", "4,5", "--seed", "3"]
    code, out, err = opstage("train", *words, "--print-config")
    assert (code, err) == (0, "")
    found = shown(out)
    assert found["run.model"] == ('"mlp"', "s.toml:2")
    assert found["run.epochs"] == ("60", "recipe of mlp")
    assert found["run.log_every"] == ("10", "default")
    assert found["optimizer.name"] == ('"adam"', "s.toml:5")
    assert found["optimizer.lr"] == ("0.25", "--lr")
    assert found["options.dtype"] == ('"float64"', "environment variable OPSTAGE_DTYPE")
    assert found["options.seed"] == ("3", "--seed")
    assert found["model.dropout"] == ("0.0", "--model.dropout")
    assert found["model.hidden"] == ("[4, 5]", "--model.hidden")
    assert tomllib.loads(out)["model"] == {
        "inputs": [1, 8, 8], "hidden": [4, 5], "classes": 10, "dropout": 0.0, "label_smoothing": 0.05
    }  # fmt: skip


def test_a_printed_configuration_is_one_to_run_again(opstage: Command, tmp_path: Path) -> None:
    _, first, _ = opstage("train", "mlp", "--optimizer.clip_norm", "2", "--print-config")
    (tmp_path / "c.toml").write_text(first)
    _, second, _ = opstage("train", "--config", "c.toml", "--print-config")
    assert tomllib.loads(second) == tomllib.loads(first)


def test_check_takes_the_configuration_too(opstage: Command) -> None:
    code, out, _ = opstage("check", "mlp", "-v", "--model.hidden", "7", "--dtype", "float64")
    assert code == 0
    assert "params.layers.0.weight       (7, 64) float64" in out


def test_a_run_in_a_directory_is_refused_twice_and_resumed(opstage: Command, tmp_path: Path) -> None:
    code, out, _ = opstage("train", "mlp", *TINY, "--out", "run", "--run.plot", "false")
    assert code == 0
    assert out.splitlines()[-1] == "saved in run: report.html, metrics.jsonl, config.toml, checkpoint"
    code, _, err = opstage("train", "mlp", *TINY, "--out", "run")
    assert (code, err) == (
        2,
        "opstage: run holds a run already; continue it with --resume run, in Python resume=True, or choose another "
        "--out\n",
    )
    code, _, err = opstage("train", "--resume", "run", "--batch-size", "5")
    assert (code, "but --batch-size says 5" in err) == (2, True)
    code, out, _ = opstage("train", "--resume", "run")
    assert (code, "after 1 epoch in" in out) == (0, True)


def test_comparing_prints_agreement(opstage: Command) -> None:
    code, out, _ = opstage("train", "mlp", *TINY, "--compare", "eager,eager:float64", "--compare-steps", "1")
    assert code == 0
    assert out.startswith("eager and eager:float64 agree on the values and gradients of")


@pytest.mark.parametrize("prefetch", ["0", "2"])
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_an_interrupt_saves_and_ends_with_128_and_its_number(
    tmp_path: Path, number: signal.Signals, code: int, word: str, prefetch: str
) -> None:
    """A signal once the first epoch's line is out; the run goes on from there."""
    command = [sys.executable, *COMMAND, "train", "mlp"]
    words = ["--epochs", "4000", "--model.hidden", "8", "--run.plot", "false", "--out", str(tmp_path / "run")]
    words += ["--data.prefetch", prefetch]
    process = subprocess.Popen([*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch 1/"):
        assert process.poll() is None
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == code
    assert err.split("\n") == [f"saved; opstage train --resume {tmp_path / 'run'} goes on from here", "", word, ""]
    assert "Interrupted after" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "checkpoint" / "checkpoint.json").exists()
    assert not (tmp_path / "run" / "lock").exists()


def test_lines_are_for_pipes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not isinstance(make_watcher(3, 0, 30), Bar)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(make_watcher(3, 0, 30), Bar)
    assert not isinstance(make_watcher(3, 0, 30, bar=False), Bar)
    monkeypatch.setenv("TERM", "dumb")
    assert not isinstance(make_watcher(3, 0, 30), Bar)


@pytest.mark.parametrize(
    ("environ", "shown"),
    [
        ({}, True),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, False),  # by mpiexec, whatever reads its output
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0", TERMINAL: "1"}, True),
        ({TERMINAL: "0"}, False),
    ],
)
def test_the_terminal_of_a_launched_process_is_that_of_its_launcher(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], shown: bool
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert isinstance(make_watcher(3, 0, 30), Bar) == shown


def test_a_quiet_run_prints_errors_only(opstage: Command) -> None:
    assert opstage("train", "mlp", *TINY, "--out", "run", "--quiet") == (0, "", "")
    code, out, err = opstage("train", "mlp", *TINY, "--out", "run", "--quiet")
    assert (code, out) == (2, "") and "holds a run already" in err


def test_the_bar_shows_rate_and_time_left_right_after_a_resume() -> None:
    """Ten of 30 steps were done before; the next one takes two seconds: 32 samples a second, 38 seconds left."""
    now = [100.0]
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=160, color_system=None)
    with Bar(3, 10, 30, clock=lambda: now[0], console=console, auto_refresh=False) as bar:
        bar.refresh()
        assert "epoch 2/3" in screen.getvalue()
        assert "resumed" in screen.getvalue()
        now[0] += 2
        bar.step(1, 0, 0.5, 64)
        bar.refresh()
        assert "loss 0.5000  32 samples/s  0:00:38 left" in screen.getvalue()
        bar.epoch(EpochResult(1, 0.4, {"accuracy": 0.975, "loss": 0.1}, 2.0, 128))
        assert "epoch 2/3  loss 0.4000  held-out accuracy 97.50 %, loss 0.1000  64 samples/s\n" in re.sub(
            r"\x1b\[[0-9;?]*[A-Za-z]| +(?=\n)", "", screen.getvalue()
        )
        now[0] += 1
        bar.step(2, 0, 0.25, 64)
        bar.refresh()
        expected = "epoch 3/3", "loss 0.2500  43 samples/s  0:00:27 left"
        assert all(text in screen.getvalue() for text in expected)


@pytest.mark.parametrize("width", [40, 60, 79, 80, 120])
@pytest.mark.parametrize("loss", [0.5, 123456789.0])
def test_the_bar_is_one_row(width: int, loss: float) -> None:
    """Loss, rate and time left are whole from 60 columns on, and there is a bar beside them."""
    now = [0.0]
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=width, color_system=None)
    with Bar(100, 10**6, 2 * 10**6 + 1, clock=lambda: now[0], console=console, auto_refresh=False) as bar:
        now[0] += 0.001
        bar.step(99, 0, loss, 64)
        bar.refresh()
        shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue()).split("\r")[-1].strip("\n")
    assert "\n" not in shown and len(shown) <= width
    assert shown.startswith("epoch 100")
    if width >= 60:
        assert "epoch 100/100 ━" in shown
        assert re.search(r"[━╸] +loss (0\.5000|1\.23e\+08)  64,000( samples)?/s  0:16:40( left)?", shown)
