"""Models on a simulated device: those that ship, one of examples/, tied parameters, what benchmarks measure."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opstage
from benchmarks import programs
from benchmarks.sides import opstage_compiled, opstage_eager
from benchmarks.workloads import Chain, Cnn, Gpt, Mlp
from opstage import Options, Param, Session, optim
from opstage.cli.main import main
from opstage.compiler.gpu.simulator import Simulator
from opstage.init import build
from opstage.models import MODELS
from opstage.ops.trees import flatten, paths
from opstage.source_files import load_file
from tests.cuda.small_models import CONFIGS, batch, trainer
from tests.cuda.traffic import stand_in
from tests.docs.blocks import ROOT
from tests.training.test_tied import CLIPS, loss, same, single_tree, start, tied_tree, untied
from tests.training.test_tied import batch as tied_batch

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
    made.empty_cache()
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
    assert "a tensor of float64 is not supported on the device, which holds float32" in out


def test_each_model_has_a_small_config() -> None:
    assert set(CONFIGS) == set(MODELS)


llama = load_file(ROOT / "examples" / "llama.py")
TINY = llama.Config(vocabulary=11, length=5, width=6, depth=1, heads=2, kv_heads=1, head_size=4, hidden=7)


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_logits_of_whole_texts_and_of_the_cache(backend: str) -> None:
    options = Options(device="cuda", backend=backend)
    params, x = build(llama.parameters(TINY), seed=1), np.random.default_rng(0).integers(0, 11, (1, 4))
    expected = opstage.run(partial(llama.logits, config=TINY), params, x)
    whole = opstage.run(partial(llama.logits, config=TINY), params, x, options=options)
    np.testing.assert_allclose(whole, expected, rtol=1e-4, atol=1e-6)
    cache = llama.empty_cache(TINY, 1)
    for begin, stop in ((0, 3), (3, 4)):
        program = partial(llama.step, config=TINY)
        found, cache = opstage.run(program, params, x[:, begin:stop], np.array(begin), cache, options=options)
        np.testing.assert_allclose(found, expected[:, begin:stop], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("side", [opstage_eager, opstage_compiled])
@pytest.mark.parametrize(
    "workload",
    (Mlp((4, 8, 3), 6), Cnn((2, 2), 4, 3, 1), Gpt(1, 2, 4, 3, 2, 5), Chain(6)),
    ids=lambda workload: type(workload).__name__,
)
def test_steps_are_those_of_the_cpu(workload: Any, side: Any) -> None:
    here, there = opstage_eager.step(workload), side.step(workload, "cuda", "tf32")
    for _ in range(2):
        assert there() == pytest.approx(here(), rel=1e-4)
    assert programs.peak_of_gpu() > 0


@pytest.mark.parametrize("clip", ["none", "by global norm"])
@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_tied_parameter_is_updated_once(backend: str, clip: str) -> None:
    options, optimizer = Options(backend=backend, device="cuda"), optim.adamw(0.1)
    tied = opstage.scalar_trainer(loss, tied_tree(), options=options, clip=CLIPS[clip])
    single = opstage.scalar_trainer(untied, single_tree(), options=options, clip=CLIPS[clip])
    host = opstage.scalar_trainer(loss, tied_tree(), clip=CLIPS[clip])
    states = [each.init_optim(optimizer) for each in (tied, single, host)]
    for seed in range(3):
        losses = [
            each.advance(optimizer, state, tied_batch(seed)).loss for each, state in zip((tied, single, host), states)
        ]
        assert losses[0] == losses[1]
        np.testing.assert_allclose(losses[0], losses[2], rtol=1e-5)
    same(tied, single)
    np.testing.assert_allclose(tied.get_params()["encoder"], host.get_params()["encoder"], rtol=1e-4, atol=1e-5)
    gradients = tied.backward(tied_batch())
    assert gradients["encoder"] is gradients["decoder"]
    assert tied.export().tied == {"decoder": ("decoder", "encoder")} and len(tied.export().params) == 2


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_a_session_on_a_device(backend: str) -> None:
    session = Session(Options(backend=backend, device="cuda"))
    w, c = (session.param(value) for value in start())
    refs = {"encoder": session.use(w), "decoder": session.use(w), "offset": session.use(c)}
    session.backward(loss(session, refs, session.input(tied_batch())))
    session.sgd_step_all(0.1)
    trainer = opstage.scalar_trainer(loss, tied_tree())
    trainer.step(0.1, tied_batch())
    np.testing.assert_allclose(w.value, trainer.get_params()["encoder"], rtol=1e-5, atol=1e-6)


def test_a_planned_parameter_is_made_once() -> None:
    from opstage.init import Placement, Uniform

    def product(ops: opstage.Ops, params: dict[str, opstage.Ref], x: opstage.Ref) -> opstage.Ref:
        return ops.sum(ops.mul(ops.mul(params["a"], params["b"]), x))

    w = Param.planned(Placement("w", (3,), Uniform(1.0, 2.0, 7)))
    first = Uniform(1.0, 2.0, 7).materialise((3,))
    trainer = opstage.scalar_trainer(product, {"a": w, "b": w}, options=Options(device="cuda"))
    trainer.step(0.1, np.ones(3, np.float32))
    np.testing.assert_allclose(w.value, first - 0.2 * first, rtol=1e-5)
