"""Progress in a notebook's cell, with a stand-in for IPython that keeps what is displayed."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.models import mlp
from opstage.runs.progress import NotebookCell, in_notebook
from opstage.training.fit import EpochResult


class Cell:
    """The output of a cell: how it looked each time it was drawn."""

    def __init__(self) -> None:
        self.drawn: list[str] = []

    def display(self, shown: Any, display_id: bool) -> Cell:
        assert display_id
        self.update(shown)
        return self

    def update(self, shown: Any) -> None:
        self.drawn.append(shown._repr_html_())


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    made = Cell()
    stand_in = SimpleNamespace(
        get_ipython=lambda: SimpleNamespace(kernel=object()), display=SimpleNamespace(display=made.display)
    )
    monkeypatch.setitem(sys.modules, "IPython", stand_in)
    monkeypatch.setitem(sys.modules, "IPython.display", stand_in.display)
    return made


def trained(epochs: int, **more: Any) -> Any:
    rng = np.random.default_rng(0)
    rows = {"x": rng.standard_normal((40, 4)), "y": rng.integers(0, 2, 40)}
    config = mlp.Config(inputs=(4,), classes=2)
    return opstage.fit("mlp", rows, config=config, epochs=epochs, batch_size=8, **more)


def test_fit_draws_a_row_for_each_epoch_above_a_bar(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    run = trained(3)
    assert capsys.readouterr().out == ""
    last = cell.drawn[-1]
    rows = re.findall(r"<tr><td>(.*?)</td></tr>", last)
    assert len(rows) == 3
    for number, (row, result) in enumerate(zip(rows, run.results, strict=True), 1):
        cells = row.split("</td><td>")
        assert cells[:2] == [str(number), f"{result.train_loss:.4f}"]
        assert cells[2] == f"{100 * result.held_out['accuracy']:.2f} %"
    assert '<progress value="12" max="12">' in last and "epoch 3/3" in last
    assert [text.count("<tr><td>") for text in cell.drawn] == sorted(text.count("<tr><td>") for text in cell.drawn)


def test_it_is_drawn_five_times_a_second_at_most(cell: Cell) -> None:
    now = [0.0]
    with NotebookCell(1, 0, 1000, clock=lambda: now[0]) as watcher:
        for step in range(1000):
            now[0] += 0.01
            watcher.step(0, step, 0.5, 32)
    assert len(cell.drawn) <= 2 + 51
    assert "loss 0.5000, 3,200 samples/s, 0:00:00 left" in cell.drawn[-2]
    assert "loss 0.5000, 3,200 samples/s<" in cell.drawn[-1]


def test_a_run_that_is_over_has_no_time_left(cell: Cell) -> None:
    run = trained(50, callbacks=opstage.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0))
    assert len(run.results) == 2
    assert " left" not in cell.drawn[-1] and "epoch 2/50" in cell.drawn[-1]


def test_what_many_epochs_send_grows_no_faster_than_their_number(cell: Cell) -> None:
    now = [0.0]
    with NotebookCell(1000, 0, 1000, clock=lambda: now[0]) as watcher:
        for epoch in range(1000):
            now[0] += 0.01
            watcher.step(epoch, 0, 0.5, 32)
            watcher.epoch(EpochResult(epoch, 0.5, {"loss": 0.5}, 0.01, 32))
    assert len(cell.drawn) <= 2 + 51
    rows = re.findall(r"<tr><td>(\d+)</td>", cell.drawn[-1])
    assert rows == [str(number) for number in range(901, 1001)]
    assert "900 earlier epochs" in cell.drawn[-1]


def test_what_ended_a_run_is_said_beneath_its_table(cell: Cell, capsys: pytest.CaptureFixture[str]) -> None:
    trained(50, callbacks=opstage.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0))
    assert "stopped after 2 of 50 epochs: loss has not become better for 1 epoch;" in capsys.readouterr().out
    trained(50, callbacks=opstage.callbacks.EarlyStopping("loss", patience=1, min_delta=10.0), progress=False)
    assert capsys.readouterr().out == ""


def test_without_progress_nothing_is_shown(cell: Cell) -> None:
    trained(1, progress=False)
    assert cell.drawn == []


def test_a_shell_on_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not in_notebook()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: SimpleNamespace()))
    assert not in_notebook()
