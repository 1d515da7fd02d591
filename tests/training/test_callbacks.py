"""Callbacks: told in order, able to end a run and to scale its rate, and resumed bit for bit with it."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage import Options, UsageError, callbacks, optim, scalar_trainer
from opstage.data import Loader, from_arrays
from opstage.optim import schedule
from opstage.training import checkpoint
from opstage.training.callback import Callback, Loop
from opstage.training.fit import EpochResult, fit
from opstage.training.snapshot import CallbackValues
from tests.training import callback_program as program
from tests.training.test_resume import stop_at

DATA = from_arrays(x=np.arange(12.0).reshape(6, 2), y=np.arange(6.0).reshape(6, 1))


def loss(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return ops.mse_loss(ops.linear(params["w"], None, x), y)


def metrics(ops: Any, params: Any, x: Any, y: Any) -> Any:
    return {"loss": ops.mul(loss(ops, params, x, y), ops.const(float(x.shape[0])))}


def fitted(
    *given: Callback, epochs: int = 3, lr: Any = 1e-3, options: Options | None = None, **more: Any
) -> tuple[Any, list[EpochResult]]:
    trainer = scalar_trainer(loss, {"w": np.full((1, 2), 0.25)}, options=options)
    loaders = Loader(DATA, 2, seed=1), Loader(DATA, 4, shuffle=False)
    return trainer, fit(trainer, optim.sgd(lr), *loaders, metrics, epochs=epochs, callbacks=given, **more)


def ema_by_hand(decay: float, epochs: int) -> tuple[Any, list[float]]:
    """The average in float64, and its held-out losses."""
    trainer = scalar_trainer(loss, {"w": np.full((1, 2), 0.25)}, options=Options(dtype="float64"))
    average, losses = trainer.get_params()["w"], []
    for epoch in range(epochs):
        for batch in Loader(DATA, 2, seed=1).epoch(epoch):
            trainer.step(1e-3, *batch)
            average = decay * average + (1 - decay) * trainer.get_params()["w"]
        losses.append(float(np.mean((np.asarray(DATA["x"]) @ average.T - np.asarray(DATA["y"])) ** 2)))
    return average, losses


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_an_average_of_the_parameters_and_its_metrics(backend: Any) -> None:
    ema = callbacks.Ema(0.75)
    _, found = fitted(ema, options=Options(dtype="float64", backend=backend))
    average, losses = ema_by_hand(0.75, 3)
    np.testing.assert_allclose(ema.values["w"], average, rtol=1e-13)
    np.testing.assert_allclose([each.held_out["ema_loss"] for each in found], losses, rtol=1e-13)
    assert all(each.held_out["loss"] != each.held_out["ema_loss"] for each in found)


def test_callbacks_that_followed_a_run_follow_the_next_one_as_new(tmp_path: Path) -> None:
    used = [callbacks.Ema(0.5), callbacks.EarlyStopping("loss", patience=2), callbacks.BestCheckpoint("loss", tmp_path)]
    before = fitted(*used)[1]
    averages = used[0].values["w"].tobytes()  # type: ignore[attr-defined]
    after = fitted(*used)[1]
    assert [dict(each.held_out) for each in after] == [dict(each.held_out) for each in before]
    assert used[0].values["w"].tobytes() == averages  # type: ignore[attr-defined]
    assert checkpoint.load(tmp_path).position.epoch == 3


def test_an_average_changes_nothing_of_the_run_it_follows() -> None:
    plain, averaged = fitted()[0], fitted(callbacks.Ema())[0]
    assert plain.get_params()["w"].tobytes() == averaged.get_params()["w"].tobytes()


def test_the_best_epoch_is_kept(tmp_path: Path) -> None:
    expected = fitted(Scripted(2, 4, 3, 4), epochs=2)[0].get_params()["w"].tobytes()
    fitted(Scripted(2, 4, 3, 4), callbacks.BestCheckpoint("script", tmp_path, mode="max", config={"a": 1}), epochs=4)
    best = checkpoint.load(tmp_path)
    assert (best.trainer.params["w"].tobytes(), best.position.epoch, best.config) == (expected, 2, {"a": 1})


@pytest.mark.parametrize(
    ("values", "how", "scale"),
    [
        ((1, 1, 1, 1), {"patience": 2}, 0.5),
        ((1, 1, 1, 1, 1), {"patience": 2}, 0.25),
        ((1, 1, 0, 0, -1), {"patience": 2}, 1.0),
        ((1, 1, 1, 1, 1), {"patience": 1, "least": 0.2}, 0.2),
    ],
)
def test_the_rate_is_reduced_on_a_plateau(values: Any, how: Any, scale: float) -> None:
    reduce = callbacks.ReduceOnPlateau("script", factor=0.5, mode="min", **how)
    rate = schedule.step(0.125, step_size=2, gamma=0.5)
    loop: list[Loop] = []
    last = callbacks.EachEpoch(lambda seen, _: loop.append(seen))
    fitted(Scripted(*values), reduce, last, epochs=len(values), lr=rate)
    assert loop[-1].position.lr_scale == pytest.approx(scale)
    assert loop[-1].optimizer.scalars(9)["lr"] == pytest.approx(scale * rate(8))


class Scripted(Callback):
    """A metric of given values, epoch by epoch."""

    def __init__(self, *values: float):
        self.values = values

    def gives(self, names: Any) -> list[str]:
        return ["script"]

    def evaluated(self, loop: Loop) -> Mapping[str, float]:
        return {"script": self.values[loop.position.epoch]}


class Heard(Callback):
    def __init__(self) -> None:
        self.lines: list[Any] = []

    def begin(self, loop: Loop) -> None:
        self.lines.append(("begin", loop.position.epoch, loop.lr))

    def step(self, loop: Loop, loss: float) -> None:
        self.lines.append((loop.position.epoch, loop.position.batch, loop.trainer.steps_taken, loop.lr))

    def epoch(self, loop: Loop, result: EpochResult) -> None:
        self.lines.append(("epoch", loop.position.epoch, sorted(result.held_out)))


def test_a_callback_is_told_of_every_step_and_epoch_with_the_rate_of_it() -> None:
    heard = Heard()
    fitted(heard, Scripted(1, 2), epochs=2, lr=schedule.exponential(0.125, gamma=0.5))
    steps = [(step // 3, step % 3 + 1, step + 1, 0.125 * 0.5**step) for step in range(6)]
    assert heard.lines == [
        ("begin", 0, 0.125),
        *steps[:3],
        ("epoch", 1, ["loss", "script"]),
        *steps[3:],
        ("epoch", 2, ["loss", "script"]),
    ]


@pytest.mark.parametrize(
    ("values", "how", "epochs"),
    [
        ((3, 2, 1, 0), {"patience": 1, "mode": "min"}, 4),
        ((3, 3, 1, 0), {"patience": 1, "mode": "min"}, 2),
        ((3, 4, 1, 2, 2, 0), {"patience": 2, "mode": "min"}, 5),
        ((3, 4, 1, 2, 2, 0), {"patience": 2, "mode": "max"}, 4),
        ((3, 2.9, 2.8, 2.0), {"patience": 2, "mode": "min", "min_delta": 0.5}, 3),
        ((float("nan"), float("nan"), 1, 1), {"patience": 2, "mode": "max"}, 2),
    ],
)
def test_a_run_ends_when_its_metric_has_not_become_better(values: Any, how: Any, epochs: int) -> None:
    stop = callbacks.EarlyStopping("script", **how)
    assert len(fitted(Scripted(*values), stop, epochs=len(values), require_finite=False)[1]) == epochs


def test_the_rate_is_scaled_from_the_next_step_on_whatever_its_schedule() -> None:
    def halve(loop: Loop, loss: float) -> None:
        if loop.state.t == 2:
            loop.scale_lr(0.5)

    rate = schedule.exponential(0.125, gamma=0.5)
    trainer, _ = fitted(callbacks.EachStep(halve), epochs=1, lr=rate)
    other = scalar_trainer(loss, {"w": np.full((1, 2), 0.25)})
    for step, batch in enumerate(Loader(DATA, 2, seed=1).epoch(0)):
        other.step(rate(step) * (0.5 if step >= 2 else 1), *batch)
    assert trainer.get_params()["w"].tobytes() == other.get_params()["w"].tobytes()


def test_a_scaled_optimizer_scales_what_it_has_for_others_too() -> None:
    found = optim.muon(0.5, others=optim.adamw(schedule.constant(0.25))).scaled(0.5).scalars(3)
    assert (found["lr"], found["others.lr"]) == (0.25, 0.125)


def broken(loop: Loop, result: EpochResult) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([callbacks.EarlyStopping], "must be a Callback, .* but is EarlyStopping itself"),
        ([broken], r"is a function; callbacks.EachEpoch\(function\)"),
        ([program.Total(), program.Total()], "two callbacks are called 'total'"),
        ([callbacks.EarlyStopping("los", patience=1, mode="min")], "got 'los' .did you mean 'loss'"),
        ([Scripted(1, 1, 1), Scripted(1, 1, 1)], "two callbacks are called 'scripted'"),
    ],
)
def test_what_is_no_set_of_callbacks_is_refused_before_a_step(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        fitted(*given)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: callbacks.EarlyStopping("quality", patience=1),
            "the name does not tell whether a larger or a smaller 'quality'",
        ),
        (lambda: callbacks.EarlyStopping(patience=0), "patience must be an int that is at least 1 but is 0"),
        (lambda: callbacks.EarlyStopping(patience=1, mode="up"), "mode must be one of"),
        (lambda: callbacks.EarlyStopping(patience=1, min_delta=-1.0), "min_delta must be"),
        (lambda: callbacks.Ema(1.0), "decay must be a number in"),
        (lambda: callbacks.ReduceOnPlateau(factor=1.0), "factor must be below 1"),
        (lambda: fitted(callbacks.BestCheckpoint()), "argument folder: expected a folder"),
        (lambda: callbacks.EachStep(3), "EachStep takes a function but got 3"),  # type: ignore[arg-type]
    ],
)
def test_numbers_that_no_callback_takes(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()


def test_a_metric_that_is_there_already_is_not_written_over() -> None:
    class Again(Scripted):
        def evaluated(self, loop: Loop) -> Mapping[str, float]:
            return {"loss": 0.0}

    with pytest.raises(UsageError, match="'again' gives a held-out metric 'loss', which there is already"):
        fitted(Again())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The ends of runs that nobody disturbed."""
    ends = {}
    for case in program.CASES:
        folder = tmp_path_factory.mktemp(case)
        program.run(case, folder)
        ends[case] = program.all_bits(checkpoint.load(folder))
    return ends


@pytest.mark.parametrize("case", program.CASES)
def test_a_run_stopped_at_every_boundary_ends_as_a_whole_one(whole: dict[str, Any], tmp_path: Path, case: str) -> None:
    """An interrupt at each boundary in turn: every process takes one step, so each is a resume."""
    for _ in range(40):
        try:
            program.run(case, tmp_path, before=stop_at(2))
        except KeyboardInterrupt:
            continue
        break
    else:
        pytest.fail("the run never ends")
    assert program.all_bits(checkpoint.load(tmp_path)) == whole[case]


@pytest.mark.parametrize("case", program.CASES)
def test_a_process_that_dies_before_its_save_leaves_a_state_that_belongs_together(
    whole: dict[str, Any], tmp_path: Path, case: str
) -> None:
    class Died(Exception):
        pass

    def dies() -> None:
        raise Died

    for at in (3, 5, 2, 9):
        try:
            program.run(case, tmp_path, before=stop_at(at, dies))
        except Died:
            continue
        break
    program.run(case, tmp_path)
    assert program.all_bits(checkpoint.load(tmp_path)) == whole[case]


def test_the_cases_do_what_they_are_for(whole: dict[str, Any]) -> None:
    assert whole["early"]["loop"][1].startswith("loss has not become better for 1 epoch; it was best, ")
    assert whole["rates"]["loop"] == (0.5**4, "")
    assert whole["ended"]["loop"] == (1.0, "enough")
    assert (whole["ended"]["position"][0], whole["ended"]["steps_taken"]) == (2, 9)
    assert whole["ema"]["loop"] == (pytest.approx(0.1**2), "")
    assert sorted(whole["ema"]["callbacks"]["ema"][1]) == ["first.bias", "first.weight", "second"]
    assert "ema_loss" in whole["ema"]["results"][0][2]
    assert len({repr(each["params"]) for each in whole.values()}) == len(whole) - 1, "best and own are one run"


def test_an_interrupt_that_a_callback_raises_saves_nothing_half_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Raises(Callback):
        def __init__(self) -> None:
            self.seen = 0

        def step(self, loop: Loop, loss: float) -> None:
            self.seen += 1
            if self.seen == 4:
                raise KeyboardInterrupt

        def export(self) -> CallbackValues:
            return CallbackValues({"seen": self.seen})

    monkeypatch.setitem(program.CASES, "raises", lambda folder: [Raises()])
    with pytest.raises(KeyboardInterrupt):
        program.run("raises", tmp_path)
    snapshot = checkpoint.load(tmp_path)
    assert (snapshot.trainer.steps_taken, snapshot.callbacks["raises"].data["seen"]) == (3, 3)


def test_a_signal_in_a_callback_waits_until_all_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = callbacks.EachStep(lambda loop, _: signal.raise_signal(signal.SIGINT) if loop.state.t == 2 else None)
    monkeypatch.setitem(program.CASES, "signals", lambda folder: [first, program.Total()])
    with pytest.raises(KeyboardInterrupt):
        program.run("signals", tmp_path)
    assert checkpoint.load(tmp_path).trainer.steps_taken == 2


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("own", "early", "lacks a state of the callback 'early_stopping'"),
        ("early", "rates", "has a state of the callback 'early_stopping', which this run lacks"),
    ],
)
def test_a_run_goes_on_with_the_callbacks_with_which_it_began(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    program.run(before, tmp_path, epochs=1)
    with pytest.raises(UsageError, match=message):
        program.run(after, tmp_path)
