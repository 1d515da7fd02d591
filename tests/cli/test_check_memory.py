"""`opstage check --memory` and `--max-memory`: the memory of a step, and the largest size that fits."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opstage import optim
from opstage.interpreters.shape_check.peak_memory import PeakMemory
from opstage.models import model
from opstage.options import Options
from opstage.training.memory import model_memory
from tests.cli.conftest import Command


def predicted(backend: str, **sizes: int) -> int:
    return model_memory(model("mlp"), optim.adamw(), Options(backend=backend)).at(**sizes).peak  # type: ignore[arg-type]


def on_device(backend: str, **sizes: int) -> PeakMemory:
    options = Options(backend=backend, device="cuda")  # type: ignore[arg-type]
    return model_memory(model("mlp"), optim.adamw(), options).at(**sizes)


def entries(result: tuple[int, str, str]) -> dict[str, dict[str, Any]]:
    """What is told of each interpreter."""
    code, out, err = result
    assert (code, err) == (0, "")
    (target,) = json.loads(out)["targets"]
    return {entry["interpreter"]: entry for entry in target["sections"]["memory"]["data"]}


def assert_largest(out: str, where: str, bytes_at: Callable[[int], int]) -> None:
    """That the size that is told fits 64 MiB, and one more does not."""
    found = re.search(rf"{where} +B=(\d+) is the largest that fits 64MiB", out)
    assert found is not None, out
    size = int(found[1])
    assert bytes_at(size) <= 64 * 2**20 < bytes_at(size + 1)


def test_memory_is_told_per_interpreter(opstage: Command) -> None:
    told = entries(opstage("check", "mlp", "--memory", "--at", "B=64", "--format", "json"))
    assert {name: entry["peak_bytes"] for name, entry in told.items()} == {
        "eager on cpu": predicted("eager", B=64),
        "compiled on cpu": predicted("compiled", B=64),
    }


def test_without_a_size_it_is_a_formula(opstage: Command) -> None:
    code, out, _ = opstage("check", "mlp", "--memory")
    assert code == 0
    assert re.search(r"eager on cpu +max\(.*\*B \+ \d", out), out
    assert "planned at numbers, give --at" in out


def test_memory_with_accumulation_says_that_it_is_of_whole_batches(opstage: Command) -> None:
    flags = ("check", "mlp", "--memory", "--at", "B=64")
    plain = opstage(*flags)[1]
    code, out, err = opstage(*flags, "--run.accumulate", "4")
    assert (code, err) == (0, "") and "whole batches" not in plain
    assert out.startswith(plain.rstrip()) and "steps of whole batches. In 4 parts (accumulate)" in out
    told = entries(opstage(*flags, "--run.accumulate", "4", "--format", "json"))
    assert all(entry["of"] == "whole batches" for entry in told.values())


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_the_largest_size_fits_and_one_more_does_not(opstage: Command, backend: str) -> None:
    code, out, _ = opstage("check", "mlp", "--max-memory", "64MiB")
    assert code == 0
    assert_largest(out, f"{backend} on cpu", lambda size: predicted(backend, B=size))


def test_a_step_that_takes_too_much_is_an_error(opstage: Command) -> None:
    code, out, _ = opstage("check", "mlp", "--max-memory", "1MB", "--at", "B=64")
    assert code == 1
    assert "of tensors at B=64, more than 976.6 KiB" in " ".join(out.split())
    code, out, _ = opstage("check", "mlp", "--max-memory", "1kB")
    assert code == 1 and "not even B=1 fits" in out


def test_one_size_is_looked_for(opstage: Command) -> None:
    code, out, _ = opstage("check", "gpt", "--max-memory", "2GiB", "--at", "T=64")
    assert code == 0 and "is the largest that fits 2GiB at T=64" in out


def test_memory_of_a_device_that_is_not_there(opstage: Command) -> None:
    flags = ("check", "mlp", "--device", "cuda")
    told = entries(opstage(*flags, "--memory", "--at", "B=64", "--format", "json"))
    code, out, _ = opstage(*flags, "--max-memory", "64MiB")
    assert code == 0
    for backend in ("eager", "compiled"):
        entry, expected = told[f"{backend} on cuda"], on_device(backend, B=64)
        assert (entry["peak_bytes"], entry["device_bytes"]) == (expected.peak, expected.blocks)
        assert_largest(out, f"{backend} on cuda", lambda size, backend=backend: on_device(backend, B=size).needed)
    code, out, _ = opstage(*flags, "--max-memory", "1MiB", "--at", "B=64")
    assert code == 1 and "of the device at B=64, more than 1.0 MiB" in " ".join(out.split())
    code, out, _ = opstage(*flags, "--memory", "--at", "B=100000000")
    assert code == 1 and "a tensor on a device has at most 2,147,483,647" in " ".join(out.split())


def test_memory_of_a_file_on_a_device(opstage: Command, tmp_path: Path) -> None:
    path = tmp_path / "own.py"
    path.write_text("def loss(ops, params, x):\n    return ops.sum(ops.linear(params['w'], None, x))\n")
    shapes = ("--step", "--input", "x: B 8", "--param", "w: 4 8")
    code, out, err = opstage("check", f"{path}:loss", *shapes, "--memory", "--at", "B=2", "--device", "cuda")
    assert code == 0, out + err
    assert "eager on cuda" in out and "compiled on cuda" in out
