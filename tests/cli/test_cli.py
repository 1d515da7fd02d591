"""The commands: what they print, how they end, and one clear line for each thing that cannot be used."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.cli.info import CUDA_LIBRARIES, CUDA_PACKAGES, cuda_lines
from opstage.compiler.gpu import machine as gpus
from tests.cli.conftest import Command, refusal
from tests.processes import COMMAND, python

TINY = ["--epochs", "1", "--model.hidden", "8"]
PROCESS = [sys.executable, *COMMAND]


def digits(**changes: Any) -> dict[str, Any]:
    """Forty samples in the shape of the digits, four of each class."""
    rng = np.random.default_rng(0)
    return {"x": rng.random((40, 1, 8, 8), np.float32), "y": np.arange(40) % 10, **changes}


# What works ---------------------------------------------------------------------------------------------------------


def test_train_checks_trains_and_tells_the_accuracy(opstage: Command) -> None:
    code, out, err = opstage("train", "mlp", *TINY)
    assert (code, err) == (0, "")
    first, second, third, *epochs, last = out.splitlines()
    assert re.fullmatch(r"mlp: 610 parameters; shapes of the whole training step checked .* in \d+ ms", first)
    assert second == "data: 1438 samples to train on, 359 held out; backend eager on cpu, float32, seed 0"
    assert third == "each epoch leaves out 30 of the 1438 samples, others each time: all batches have 64 (batch_size)"
    assert len(epochs) == 1 and epochs[0].startswith("epoch 1/1  loss ")
    told = re.fullmatch(
        r"held-out accuracy (\d+\.\d\d) % \((\d+) of 359\), loss \d+\.\d{4}, after 1 epoch in \d+\.\d s", last
    )
    assert told is not None
    assert float(told[1]) == pytest.approx(100 * int(told[2]) / 359, abs=0.005)


def test_the_same_seed_gives_the_same_run(opstage: Command) -> None:
    def last(seed: str) -> str:
        return opstage("train", "mlp", *TINY, "--seed", seed)[1].splitlines()[-1].split(" after ")[0]

    assert last("3") == last("3") != last("4")


def test_the_compiled_backend_trains_as_the_eager_one_does(opstage: Command) -> None:
    told = []
    for backend in ("eager", "compiled"):
        code, out, err = opstage("train", "mlp", *TINY, "--dtype", "float64", "--backend", backend)
        assert (code, err) == (0, "")
        assert f"backend {backend} on cpu, float64" in out
        told.append(out.splitlines()[-1].split(" after ")[0])
    assert told[0] == told[1]


def test_train_on_a_file(opstage: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", **digits())
    code, out, _ = opstage("train", "mlp", *TINY, "--data", "mine.npz", "--batch-size", "16", "--dtype", "float64")
    assert code == 0
    assert "32 samples to train on, 8 held out; backend eager on cpu, float64" in out


def test_check_proves_the_shipped_models(opstage: Command) -> None:
    code, out, err = opstage("check", "mlp", "--verbose")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "mlp, one training step:"
    assert any(re.fullmatch(r"  x +\(B, 1, 8, 8\) float32", line) for line in lines)
    assert re.fullmatch(r"ok: \d+ ops, .*B.* flops, .* bytes moved", lines[-1])
    assert opstage("check")[1].startswith("ok: cnn, one training step: ")


def test_check_ends_with_1_where_it_finds_an_error(opstage: Command) -> None:
    code, out, err = opstage("check", "mlp", "--dtype", "exact", "--optimizer", "sgd")
    assert (code, err) == (1, "")
    assert "does not support exp in dtype exact" in out
    assert "click" not in out  # no line of the framework is shown as the user's
    assert out.splitlines()[-1] == "1 error"


def test_info_names_what_it_runs_on(opstage: Command) -> None:
    code, out, err = opstage("info")
    assert (code, err) == (0, "")
    for word in ("opstage", "numpy", "numba", "interpreters", "eager", "BLAS", "threads", "processor", "GPU"):
        assert word in out


def test_info_lists_gpus_and_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    h200 = gpus.GpuInfo("NVIDIA H200", (9, 0), 150 * 2**30)
    monkeypatch.setattr(gpus, "look", lambda: gpus.Machine((13, 0), (h200,)))
    lines = cuda_lines()
    assert lines[:2] == [
        "NVIDIA driver    runs CUDA 13.0 and older",
        "GPU              NVIDIA H200, compute capability 9.0, 150.0 GiB",
    ]
    assert [line.split()[0] for line in lines[3:]] == [*CUDA_PACKAGES, *CUDA_LIBRARIES]
    monkeypatch.setattr(gpus, "look", lambda: gpus.NOTHING)
    assert cuda_lines()[0] == "GPU              none (no NVIDIA driver: libcuda was not found)"
    monkeypatch.setattr(gpus, "look", lambda: gpus.Machine((13, 0), ()))
    assert "reports no device" in cuda_lines()[1]


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["train", "--help"], ["check", "--help"], ["info", "--help"]])
def test_help(opstage: Command, words: list[str]) -> None:
    code, out, err = opstage(*words)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: opstage")
    if words == ["train", "--help"]:
        for flag in ("--backend", "--device", "--dtype", "--epochs", "--lr", "--batch-size", "--seed", "--data"):
            assert flag in out


def test_version(opstage: Command) -> None:
    code, out, _ = opstage("--version")
    assert code == 0 and out.startswith("opstage, version ")


# What does not ------------------------------------------------------------------------------------------------------


def _nan() -> dict[str, Any]:
    data = digits()
    data["x"][17, 0, 3, 3] = np.nan
    return data


def _label(row: int, label: int) -> dict[str, Any]:
    data = digits()
    data["y"][row] = label
    return data


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": digits()["x"], "y": digits()["y"]}, r"bad\.npz: array 'x' is missing; the file has images, y"),
        ({"x": digits()["x"]}, r"bad\.npz: array 'y' is missing; the file has x"),
        ({}, r"bad\.npz: .*(empty|is missing)"),
        ({name: array[:0] for name, array in digits().items()}, r"bad\.npz: x: the dataset is empty"),
        (_nan(), r"bad\.npz: x: row 17 holds nan \(rows are counted from 0\)"),
        (_label(5, 10), r"bad\.npz: y: row 5 holds label 10 .*mlp has 10 classes: labels are 0 … 9"),
        (_label(39, -1), r"bad\.npz: y: row 39 holds label -1"),
        (
            _label(39, -100),
            r"bad\.npz: y: row 39 holds label -100 .*mlp does not ignore labels, so leave such rows out",
        ),
        (digits(y=np.arange(39)), r"bad\.npz: y: has 39 rows but .*bad\.npz: x has 40"),
        (digits(y=np.arange(40) / 10), r"bad\.npz: y: row 1 holds 0\.1 .*; expected a whole number"),
        (
            digits(y=np.zeros((40, 2), int)),
            r"bad\.npz: y: y has rows of shape \(2,\), but mlp takes y of Spec\(\"B\", d",
        ),
        (
            digits(x=np.zeros((40, 1, 9, 9))),
            r"bad\.npz: x: x has rows of shape \(1, 9, 9\), but .*Spec\(\"B 1 8 8\"\); set --model\.inputs 1,9,9",
        ),
        (digits(x=np.full((40, 1, 8, 8), "ink")), r"bad\.npz: x: holds <U3 values"),
        (digits(x=np.zeros((40, 1, 8, 8), complex)), r"bad\.npz: x: holds complex128 values"),
    ],
    ids=[
        *("no x", "no y", "no arrays", "empty", "nan", "label too large", "label negative", "label ignored", "lengths"),
        *("float labels", "two labels", "shape", "text", "complex"),
    ],
)
def test_bad_data_name_the_file_and_the_row(opstage: Command, tmp_path: Path, arrays: Any, message: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    line = refusal(opstage("train", "mlp", *TINY, "--data", "bad.npz", "--batch-size", "16"))
    assert re.search(message, line), line


def test_files_that_are_no_data(opstage: Command, tmp_path: Path) -> None:
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "folder.npz").mkdir()
    (tmp_path / "nothing.npz").write_bytes(b"")
    np.savez(tmp_path / "whole.npz", **digits())
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:3000])
    for name, message in [
        ("missing.npz", "no such file"),
        ("text.npz", "not a .npz file that can be read: it has no .npz header"),
        ("folder.npz", "not a .npz file that can be read"),
        ("nothing.npz", "not a .npz file that can be read"),
        ("cut.npz", "not a .npz file that can be read: File is not a zip file"),
        ("whole.xyz", "unknown format"),
    ]:
        line = refusal(opstage("train", "mlp", *TINY, "--data", name))
        assert line.startswith(name) and re.search(message, line), line


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("OPSTAGE_BACKND", "eager", r"OPSTAGE_BACKND: unknown option \(did you mean 'OPSTAGE_BACKEND'\?\)"),
        ("OPSTAGE_DEVICE", "gpu", r"OPSTAGE_DEVICE: .*'gpu' is not one of 'cpu', 'cuda'"),
        ("OPSTAGE_SEED", "-4", r"OPSTAGE_SEED: .*-4"),
        ("OPSTAGE_VALIDATE", "maybe", r"OPSTAGE_VALIDATE: .*'maybe' is not a boolean; expected true, false, 1 or 0"),
    ],
)
def test_typos_in_the_environment(
    opstage: Command, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    assert re.search(message, refusal(opstage("train", "mlp", *TINY)))


def test_the_environment_sets_options(opstage: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSTAGE_DTYPE", "float64")
    monkeypatch.setenv("OPSTAGE_SEED", "5")
    assert "float64, seed 5" in opstage("train", "mlp", *TINY)[1]
    assert "float64, seed 6" in opstage("train", "mlp", *TINY, "--seed", "6")[1]  # a flag is nearer


# As a process -------------------------------------------------------------------------------------------------------


def test_exit_codes_of_the_process(tmp_path: Path) -> None:
    for words, code in ((["check", "mlp"], 0), (["check", "mlp", "--dtype", "exact"], 1), (["check", "mpl"], 2)):
        ended = python(*COMMAND, *words, cwd=tmp_path)
        assert ended.returncode == code, ended.stderr
        assert "Traceback" not in ended.stderr


def test_an_interrupt_ends_with_130(tmp_path: Path) -> None:
    """Ctrl-C once the first epoch's line is out."""
    words = ["train", "mlp", "--epochs", "4000", "--model.hidden", "8"]
    process = subprocess.Popen(
        [*PROCESS, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch 1/"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130
    assert err.strip() == "interrupted"
    assert all(line.startswith("epoch ") for line in out.splitlines())
    assert not any(tmp_path.iterdir())


def test_a_reader_who_leaves_early_is_no_error(tmp_path: Path) -> None:
    """opstage train … | head -1"""
    words = ["train", "mlp", "--epochs", "60", "--model.hidden", "8"]
    process = subprocess.Popen(
        [*PROCESS, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    err = process.stderr.read()
    process.wait()
    process.stderr.close()
    assert "Traceback" not in err


def test_the_package_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "opstage", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert opstage.__version__ in done.stdout
