"""The report as a run goes, and what it says of a classifier."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.ops.errors import UsageError
from opstage.runs import configure, train
from opstage.runs.charts import Curves
from opstage.runs.directory import REPORT, RunDirectory
from opstage.runs.evaluation import Classification, Mistake, classify
from opstage.runs.journal import Journal, Pace
from opstage.runs.report import classification_html, show_duration
from opstage.runs.run import begin
from opstage.runs.run_setup import prepare
from opstage.training.fit import EpochResult, Position


@pytest.mark.parametrize(("cost", "steps"), [(0.0, 1000), (0.02, 1000), (0.5, 1000), (30.0, 9000)])
def test_writing_takes_a_hundredth_of_the_time(cost: float, steps: int) -> None:
    """After any step of a run, beside the first writing, whose cost nobody knows before."""
    now = [0.0]
    pace = Pace(lambda: now[0])
    spent, times = [], []

    def write() -> None:
        times.append(now[0])
        now[0] += cost

    for _ in range(steps):
        now[0] += 1.0
        if pace.due:
            pace.spend(write)
            spent.append(cost)
            assert len(spent) == 1 or sum(spent) <= 0.01 * now[0]
    assert times[0] == 3.0 and len(times) >= 2
    assert all(later - earlier >= 3.0 for earlier, later in itertools.pairwise(times))


def test_a_writing_that_fails_counts() -> None:
    now = [0.0]
    pace = Pace(lambda: now[0])

    def fail() -> None:
        now[0] += 5.0
        raise UsageError("full")

    now[0] = 4.0
    assert pace.due
    with pytest.raises(UsageError):
        pace.spend(fail)
    assert not pace.due


def test_the_report_is_there_while_the_run_goes(tmp_path: Path) -> None:
    """Whole after each writing, and without a word of its end; a killed run leaves the last one."""
    out = tmp_path / "run"
    values: dict[str, Any] = {"run": {"epochs": 2, "log_every": 1, "plot": False, "out": str(out)}}
    configuration = configure("mlp", values={**values, "model": {"hidden": (4,)}}, environ={})
    task = prepare(configuration.settings)
    begin(task, configuration)
    now = [0.0]
    with RunDirectory.reopen(out) as directory:
        journal = Journal(task, configuration, directory, Position(), lambda line: None, pace=Pace(lambda: now[0]))
        journal.step(0, 0, 1.5, 64)
        assert not (out / REPORT).exists()
        now[0] = 10.0
        journal.step(0, 1, float("nan"), 64)
        page = (out / REPORT).read_text()
        assert page.endswith("</html>\n") and "Running: 0 of 2 epochs, 2 of" in page and "data-written=" in page
        now[0] = 20.0
        journal.epoch(EpochResult(0, 1.25, {"loss": 0.5}, 1.0, 1438))
        assert "Running: 1 of 2 epochs" in (out / REPORT).read_text()
        now[0] = 30.0
        (out / REPORT).unlink()
        (out / REPORT).mkdir()  # nothing can be written: the run goes on
        journal.step(1, 0, 1.0, 64)
        (out / REPORT).rmdir()
        journal.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    page = (out / REPORT).read_text()
    assert "Interrupted after 1 of 2 epochs" in page and "data-written=" not in page


def test_rates_are_those_that_were_written() -> None:
    lines = [{"kind": "step", "step": s, "epoch": 0, "loss": 1.0, "lr": lr, "samples_per_second": 9.0}
             for s, lr in ((1, 0.1), (2, None))]  # fmt: skip
    rate, speed = Curves(lines).rates()
    assert rate.curves[0].points == ((1, 0.1),)
    assert speed.curves[0].points == ((1, 9.0), (2, 9.0))
    assert Curves([{"kind": "step", "step": 1, "epoch": 0, "loss": 1.0}]).rates() == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (12.4, "12 s"),
        (59.7, "1 min 00 s"),
        (185.0, "3 min 05 s"),
        (3725, "1 h 02 min"),
    ],
)
def test_show_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert show_duration(seconds) == text


def test_precision_recall_and_f1() -> None:
    """By hand: class 2 is never found, and there is none of class 3."""
    counts = np.array([[3, 1, 0, 0], [0, 2, 0, 2], [1, 1, 0, 0], [0, 0, 0, 0]])
    scores = Classification(counts, ()).scores
    assert scores.precision == pytest.approx([3 / 4, 2 / 4, math.nan, 0], nan_ok=True)
    assert scores.recall == pytest.approx([3 / 4, 2 / 4, 0, math.nan], nan_ok=True)
    assert scores.f1 == pytest.approx([3 / 4, 2 / 4, 0, 0])
    page = classification_html(Classification(counts, ()), ["a<", "b", "c", "d"])
    assert "<th>a&lt;</th><td>4</td><td>75.0 %</td><td>75.0 %</td><td>75.0 %</td>" in page
    assert "<th>c</th><td>2</td><td>none</td><td>0.0 %</td><td>0.0 %</td>" in page


def test_the_worst_mistakes_are_the_most_certain_ones() -> None:
    """Against the predicted probabilities of all held-out samples at once."""
    task = prepare(configure("cnn", values={"model": {"channels": (4,), "dense": 8}}, environ={}).settings)
    made = classify(task.trainer, task.model.measures, task.test_batches)
    assert made is not None and made.counts.sum() == len(task.held_out)
    assert task.model.outputs is not None
    out = task.trainer.evaluate(task.model.outputs, task.held_out["x"])
    labels, shares = task.held_out["y"], np.asarray(out["probabilities"])
    wrong = np.flatnonzero(out["class"] != labels)
    expected = wrong[np.argsort(-shares[wrong].max(axis=1), kind="stable")][: len(made.mistakes)]
    assert [mistake.row for mistake in made.mistakes] == expected.tolist()
    for mistake in made.mistakes:
        assert (mistake.true, mistake.found) == (labels[mistake.row], out["class"][mistake.row])
        assert mistake.probability == pytest.approx(shares[mistake.row].max(), rel=1e-5)
        assert np.array_equal(mistake.sample, task.held_out["x"][mistake.row])


@pytest.mark.parametrize(
    ("sample", "shown"),
    [
        (np.zeros((1, 8, 8), np.float32), "<img"),
        (np.arange(30, dtype=np.uint8).reshape(5, 6), "<img"),
        (np.array([1.5, -2.0]), "1.5, -2<"),
        (np.arange(64), "10, 11, … (64 numbers)"),
        (np.zeros((2, 3)), "0, 0, 0, 0, 0, 0<"),
        (np.float32(3.0), "3<"),
        (np.array([True, False]), "1, 0<"),
    ],
    ids=str,
)
def test_mistakes_are_drawn_or_written(sample: Any, shown: str) -> None:
    mistake = Mistake(7, 0, 1, 0.912, np.array(sample))
    page = classification_html(Classification(np.array([[1, 1], [0, 1]]), (mistake,)))
    assert shown in page and "0, predicted 1 (<span>91.2 %</span>), <span>row 7</span>" in page


def test_classes_have_the_names_of_the_file(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    kinds = np.array(["daisy", "rose<"])[np.arange(100) % 2]
    rows = [f"{a:.3f},{b:.3f},{kind}" for (a, b), kind in zip(generator.random((100, 2)), kinds)]
    (tmp_path / "flowers.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    values: dict[str, Any] = {
        "run": {"epochs": 1, "plot": False, "out": str(tmp_path / "run")},
        "data": {"file": str(tmp_path / "flowers.csv"), "batch_size": 16},
        "model": {"hidden": (4,), "inputs": (2,), "classes": 2},
    }
    train(configure("mlp", values=values, environ={}))
    page = (tmp_path / "run" / REPORT).read_text()
    assert "<th>daisy</th><th>rose&lt;</th>" in page
    assert "daisy, predicted rose&lt; (" in page or "rose&lt;, predicted daisy (" in page
