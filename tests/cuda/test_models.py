"""Every shipped model on a simulated device: two training steps beside the CPU's, constant memory, and the commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage import Options, optim
from opstage.cli.main import main
from opstage.compiler.gpu.simulator import Simulator
from opstage.models import MODELS
from opstage.ops.trees import flatten, paths
from tests.cuda.small_models import CONFIGS, batch, trainer
from tests.cuda.traffic import stand_in

CUDA = Options(device="cuda", seed=1)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_two_steps_are_those_of_the_cpu(name: str, backend: str) -> None:
    """By gradient descent: an adaptive step makes a step of its whole length out of a gradient that is rounding."""
    here, there = trainer(name, CUDA.replace(device="cpu")), trainer(name, CUDA.replace(backend=backend))
    for _ in range(2):
        np.testing.assert_allclose(here.step(0.01, *batch(name)), there.step(0.01, *batch(name)), rtol=1e-5)
    expected, actual = here.get_params(), there.get_params()
    for path, a, b in zip(paths(expected), flatten(expected)[0], flatten(actual)[0], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5 * max(1.0, float(np.abs(a).max())), err_msg=path)
    for a, b in zip(flatten(here.state)[0], flatten(there.state)[0], strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["cnn", "gpt", "lstm", "mlp"])
def test_memory_is_constant_over_50_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compute nothing here: what a step takes and gives back does not depend on it."""
    device = Simulator()
    stand_in(monkeypatch, device)
    monkeypatch.setattr(Simulator, "launch", lambda *arguments: None)
    made, optimizer, arrays = trainer(name, CUDA), optim.adamw(lr=0.01), batch(name)
    state = made.init_optim(optimizer)
    used, peaks = [], []
    for _ in range(50):
        device.peak = 0
        made.advance(optimizer, state, *arrays)
        used.append(device.used)
        peaks.append(device.peak)
    assert len(set(used[1:])) == len(set(peaks[1:])) == 1, (used, peaks)
    made.trim()
    params = sum(p.nbytes for p in flatten(made.get_params())[0])
    assert device.used <= 3 * params + 8 + 4, "parameters, two moments of each, the number of the step, the flag"


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    monkeypatch.setattr(sys, "argv", ["opstage", *words])
    with pytest.raises(SystemExit) as end:
        main()
    out, err = capsys.readouterr()
    return end.value.code, out + err


SMALL = ("--model.inputs", "[1, 2, 3]", "--model.hidden", "[4]", "--model.classes", "2", "--device", "cuda")


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Training that is kept, and the comparison with the CPU op by op."""
    monkeypatch.chdir(tmp_path)
    y = np.arange(20) % 2
    np.savez("few.npz", x=np.random.default_rng(0).standard_normal((20, 1, 2, 3)), y=y)
    words = ("train", "mlp", *SMALL, "--data", "few.npz", "--batch-size", "8", "--epochs", "1", "--out", "run")
    code, out = run(monkeypatch, capsys, *words)
    assert code == 0, out
    assert "backend eager on cuda, float32" in out and "held-out accuracy" in out
    code, out = run(monkeypatch, capsys, *words[:-2], "--compare", "eager:cpu,eager:cuda", "--compare-steps", "1")
    assert code == 0, out
    assert "eager:cpu and eager:cuda agree on the values and gradients of" in out


def test_a_check_knows_what_a_device_has(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(monkeypatch, capsys, "check", "mlp", "--device", "cuda")
    assert code == 0, out
    code, out = run(monkeypatch, capsys, "check", "mlp", "--device", "cuda", "--dtype", "float64")
    assert code == 1 and out.endswith("\n1 error\n"), "the dtype is at fault, and no op more than another"
    code, out = run(monkeypatch, capsys, "check", "mlp", "--runs-on")
    rows = {line.split("  ")[1]: line for line in out.splitlines() if " on cuda " in line}
    assert [row.split("cuda")[1].strip() for row in rows.values()] == ["float32 yes, float64 no, exact no"] * 2, out
    assert "a tensor of float64 has no form on the device, which holds float32" in out


def test_each_model_has_a_small_config() -> None:
    assert set(CONFIGS) == set(MODELS)
