"""`opstage bench`: what it prints, and one clear line for each thing that cannot be used. No figure is looked at."""

from __future__ import annotations

import importlib
import json
import re

import pytest

from opstage.interpreters.graph.cpu.cost import Limits
from tests.cli.conftest import Command

MLP = ["mlp", "--model.hidden", "8", "--batch-size", "16", "--seconds", "0"]


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose limits need not be measured."""
    module = importlib.import_module("opstage.cli.timing")
    monkeypatch.setattr(module, "measure_limits", lambda dtype: Limits(4e11, 4e10, 2))


@pytest.mark.parametrize("backend", ("eager", "compiled"))
def test_steps_are_timed(opstage: Command, backend: str) -> None:
    code, out, err = opstage("bench", *MLP, "--backend", backend)
    assert (code, err) == (0, "")
    first, second = out.splitlines()
    assert first == f"mlp: 610 parameters, batches of 16; backend {backend} on cpu, float32"
    assert re.fullmatch(r"first step [\d.]+ s; median of \d+ more [\d.]+ ms, best [\d.]+ ms; [\d,]+ samples/s", second)


def test_a_profile_is_of_the_compiled_step(opstage: Command) -> None:
    code, out, err = opstage("bench", *MLP, "--profile")
    assert (code, err) == (0, "")
    first, _, machine, _, head, *rows, total, _, least = out.splitlines()
    assert "backend compiled on cpu" in first
    assert machine == "this machine at most: 400 GFLOP/s (a product of matrices), 40.0 GB/s (a copy), 2 threads"
    assert head.split()[-1] == "kernel"
    assert any("product_float32 (16×64 · 64×8)" in row for row in rows)
    assert total.endswith("all kernels")
    assert re.fullmatch(r"at that limit all kernels would take [\d.]+ ms", least)


def test_the_same_as_json(opstage: Command) -> None:
    code, out, err = opstage("bench", *MLP, "--profile", "--json", "--dtype", "float64")
    assert (code, err) == (0, "")
    figures = json.loads(out)
    assert (figures["model"], figures["batch_size"], figures["dtype"]) == ("mlp", 16, "float64")
    assert figures["steps"] >= 5
    kernels = figures["profile"]["kernels"]
    products = [kernel for kernel in kernels if kernel["kernel"] == "product_float64"]
    assert {kernel["flops"] for kernel in products if kernel["operands"] == "16×64 · 64×8"} == {2 * 16 * 64 * 8}
    assert figures["profile"]["limits"] == {"flops": 4e11, "bytes": 4e10, "threads": 2}
    code, out, _ = opstage("bench", *MLP, "--json")
    assert code == 0 and "profile" not in json.loads(out)
