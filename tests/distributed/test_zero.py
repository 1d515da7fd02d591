"""ZeRO: the optimizer's state in parts, with the bits of one that is whole; checkpoints know of neither."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opstage
from opstage import Options, Spec, optim
from opstage.models import gpt, model, parallel
from opstage.ops.dims import evaluate
from opstage.ops.trees import flatten
from opstage.optim import clip
from opstage.training.validate import check_step
from tests.distributed.compared import assert_close, digest, trainer_of

CONFIG = gpt.Config(width=32, depth=1, heads=2, hidden=34, length=8)
RULES = {
    "sgd": optim.sgd(0.1),
    "momentum": optim.momentum(0.1),
    "adamw": optim.adamw(1e-2),
    "rmsprop": optim.rmsprop(1e-2),
    "muon": optim.muon(1e-2, others=optim.adamw(1e-2)),
}


def texts() -> list[Any]:
    rng = np.random.default_rng(0)
    return [[rng.integers(0, 256, (12, 8)) for _ in range(2)] for _ in range(3)]


def begun(mesh: str, zero: int, **more: Any) -> Any:
    how = {name: more.pop(name) for name in ("backend", "dtype") if name in more}
    return trainer_of(model("gpt", CONFIG), Options(mesh=mesh, zero=zero, **how), **more)


def digest_of(trainer: Any, state: Any) -> str:
    """Of the parameters and of the optimizer's state, whole."""
    return digest([*flatten(trainer.get_params())[0], *(slot for each in state.slots for slot in each)])


def trained(rule: Any, mesh: str, zero: int, **more: Any) -> str:
    trainer = begun(mesh, zero, **more)
    state = trainer.init_optim(rule)
    for batch in texts():
        state = trainer.step_with(rule, state, *batch)
    return digest_of(trainer, state)


@pytest.mark.parametrize(
    "name, mesh",
    [
        pytest.param(name, mesh, marks=() if i % 2 == k else pytest.mark.slow)
        for i, name in enumerate(RULES)
        for k, mesh in enumerate(("data=2", "data=6"))
    ],
)
def test_it_has_the_bits_of_a_state_that_is_whole(name: str, mesh: str) -> None:
    """Some parameters have no multiple of 6 elements, some are too small to be shared out."""
    whole = trained(RULES[name], mesh, 0)
    assert [trained(RULES[name], mesh, zero) for zero in (2, 3)] == [whole] * 2


@pytest.mark.parametrize(
    "more", [{"clip": clip.by_global_norm(0.5)}, {"gradient_norm": True}, {"accumulate": 2}], ids=str
)
def test_with_clipping_with_norms_and_in_parts(more: Any) -> None:
    rule = RULES["adamw"]
    assert len({trained(rule, "data=2", zero, **more) for zero in (0, 2, 3)}) == 1


def test_beside_tensor_parallel() -> None:
    assert len({trained(RULES["adamw"], "data=2,model=2", zero) for zero in (0, 2, 3)}) == 1


def _looped(ops: Any, params: Any, x: Any) -> Any:
    """A block of tensor parallel layers that is applied twice, as in ALBERT (Lan et al. 2020)."""
    for _ in range(2):
        h = ops.gelu(parallel.column_linear(ops, params["up"], None, x))
        x = ops.add(x, parallel.row_linear(ops, params["down"], params["b"], h))
    return ops.reduce_mean(ops.mul(x, x))


def test_beside_tensor_parallel_weights_that_are_used_twice() -> None:
    """Their gradients are added up before they are summed over the ranks, once, at every level."""
    rng, digests, rule = np.random.default_rng(0), set(), RULES["adamw"]
    params = {"up": rng.standard_normal((64, 32)), "down": rng.standard_normal((32, 64)), "b": np.zeros(32)}
    for zero in (0, 2, 3):
        trainer = opstage.scalar_trainer(_looped, params, options=Options(mesh="data=4,model=2", zero=zero))
        state = trainer.init_optim(rule)
        for step in range(2):
            trainer.advance(rule, state, np.random.default_rng(step).standard_normal((8, 32)))
        digests.add(digest_of(trainer, state))
    assert len(digests) == 1
    report = check_step(_looped, params, Spec("B 32"), options=Options(mesh="data=4,model=2"))
    assert [s.calls for s in report.traffic.sendings if (s.name, s.axis) == ("all_reduce", "data")] == [4]


def _by_scan(ops: Any, params: Any, x: Any) -> Any:
    """Layers of one parameter, which ZeRO shares out, in a loop."""

    def body(o: Any, carry: Any, _: Any) -> Any:
        for i in range(2):
            weight = o.squeeze(o.slice(params["layers"], axis=0, start=i, length=1), axis=0)
            carry = o.tanh(o.linear(weight, params["b"], carry))
        return carry, None

    last, _ = ops.scan(body, x, None, length=2)
    return ops.reduce_mean(ops.mul(last, last))


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_in_a_loop(backend: str) -> None:
    rng, found = np.random.default_rng(0), set()
    params = {"layers": rng.standard_normal((2, 32, 32)), "b": np.zeros(32)}
    for zero in (0, 2, 3):
        trainer = opstage.scalar_trainer(_by_scan, params, options=Options(mesh="data=2", zero=zero, backend=backend))
        state = trainer.init_optim(RULES["adamw"])
        trainer.advance(RULES["adamw"], state, np.random.default_rng(1).standard_normal((8, 32)))
        found.add(digest_of(trainer, state))
    assert len(found) == 1


def test_a_compiled_step_too() -> None:
    trainers = [begun("data=2", zero, backend="compiled") for zero in (3, 2, 0)]
    rule, leaves = RULES["adamw"], []
    for trainer in trainers:
        state = trainer.init_optim(rule)
        for batch in texts()[:2]:
            trainer.advance(rule, state, *batch)
        leaves.append([*flatten(trainer.get_params())[0], *(slot for each in state.slots for slot in each)])
    for *shared, whole in zip(*leaves, strict=True):
        for each in shared:
            np.testing.assert_allclose(each, whole, rtol=1e-5, atol=1e-6)


def test_a_rank_keeps_its_part() -> None:
    trainer, rule = begun("data=4", 2), RULES["adamw"]
    state = trainer.init_optim(rule)
    trainer.advance(rule, state, *texts()[0])
    kept = sum(ref.type.nbytes for each in state._held[1] for ref in each)
    whole = sum(slot.nbytes for each in state.slots for slot in each)
    assert kept < 0.28 * whole


def test_its_state_goes_on_on_any_mesh() -> None:
    rule, batches = RULES["adamw"], texts()
    first = begun("data=4", 2, dtype="float64")
    state = first.init_optim(rule)
    first.advance(rule, state, *batches[0])
    saved, moments = first.export(), first.export_optim(rule, state)
    found = []
    for mesh, zero in (("data=4", 2), ("data=4", 0), ("data=4", 3), ("data=2", 3), ("", 0)):
        trainer = begun(mesh, zero, dtype="float64")
        trainer.restore(saved)
        again = trainer.import_optim(rule, moments)
        for batch in batches[1:]:
            trainer.advance(rule, again, *batch)
        found.append((digest_of(trainer, again), flatten(trainer.get_params())[0]))
    assert found[0][0] == found[1][0] == found[2][0]
    for _, leaves in found[3:]:
        assert_close(leaves, found[0][1], rtol=1e-7, atol=1e-9)


def test_the_step_is_proved_and_its_memory_is_a_formula() -> None:
    made = model("gpt", CONFIG)
    reports = {}
    for zero in (0, 2):
        how = Options(mesh="data=N", zero=zero)
        report = check_step(made.loss, made.init, *made.batch, optimizer=optim.adamw(), options=how)
        assert report.ok and not report.conditions
        slots = [t for n, t in zip(report.program.names, report.program.body.input_types) if n.startswith("slots.")]
        reports[zero] = report.traffic, sum((t.nbytes for t in slots), start=0)
    at = {"N": 4, "B": 8, "T": 8}
    assert evaluate(reports[2][1], at) < 0.28 * evaluate(reports[0][1], at)
    sent = [evaluate(reports[zero][0].sent, at) for zero in (0, 2)]
    assert sent[1] == pytest.approx(sent[0], rel=1e-3)  # but for the zeros that fill up
    assert {s.name for s in reports[2][0].sendings} == {"all_reduce", "reduce_scatter", "all_gather"}


def test_levels_that_there_are_not() -> None:
    for value in (1, 4, True, "2", 2.0, [2]):
        with pytest.raises(opstage.UsageError, match="is not a level of ZeRO; expected 0, 2 or 3"):
            Options(zero=value)  # type: ignore[arg-type]
