"""Progress of a training run in a notebook cell: a row per epoch, with a bar below."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from html import escape
from typing import Any, Self, final

from ..training.fit import EpochResult
from .progress import Rate, format_metric, short

_INTERVAL = 0.2
"""The minimum number of seconds between two updates, each a message to the browser."""

_ROWS = 100
"""The number of epochs in the table, the last ones, since every update sends all of it."""


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook (Jupyter, VS Code, Colab)."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@final
class NotebookCell(AbstractContextManager["NotebookCell"]):
    """A table of the epochs and a bar over all steps, redrawn in one output of the cell."""

    def __init__(self, epochs: int, done: int, steps: int, *, clock: Callable[[], float] = time.monotonic):
        """`done` of all `steps` are already done."""
        self._epochs, self._steps, self._clock = epochs, steps, clock
        self._rate = Rate(done, steps, clock)
        self._rows: list[EpochResult] = []
        self._status, self._left = "resumed" if done else "", ""
        self._epoch = min(epochs, done * epochs // steps + 1)
        self._drawn = -_INTERVAL
        self._output: Any = None

    def __enter__(self) -> Self:
        from IPython.display import display

        self._rate.begin()
        show: Any = display
        self._output = show(self, display_id=True)
        return self

    def __exit__(self, *exception: object) -> None:
        self._left = ""
        self._output.update(self)

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Count a step; redraw if the last update is old enough."""
        rate = self._rate.step(samples)
        pace = "" if rate is None else f", {rate[0]:,.0f} samples/s"
        self._epoch, self._status = epoch + 1, f"loss {short(loss)}{pace}"
        self._left = "" if rate is None else f", {rate[1]} left"
        self._redraw()

    def epoch(self, result: EpochResult) -> None:
        """Add the epoch's row; redraw if the last update is old enough."""
        self._rows.append(result)
        self._redraw()

    def _redraw(self) -> None:
        if self._clock() - self._drawn >= _INTERVAL:
            self._drawn = self._clock()
            self._output.update(self)

    def _repr_html_(self) -> str:
        rows = self._rows[-_ROWS:]
        names = sorted({name for row in rows for name in row.held_out})
        titles = ("epoch", "training loss", *[f"held-out {name}" for name in names], "samples/s")
        head = "".join(f"<th>{escape(title)}</th>" for title in titles)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in _cells(row, names))}</tr>" for row in rows)
        if before := len(self._rows) - len(rows):
            body = f'<tr><td colspan="{len(titles)}">{before} earlier epochs</td></tr>{body}'
        table = f"<table><tr>{head}</tr>{body}</table>" if self._rows else ""
        status = escape(self._status + self._left)
        return (
            f'<div class="opstage-progress">{table}epoch {self._epoch}/{self._epochs} '
            f'<progress value="{self._rate.done}" max="{self._steps}"></progress> {status}</div>'
        )

    def __repr__(self) -> str:
        return f"epoch {self._epoch}/{self._epochs}: {self._status + self._left or 'begins'}"


def _cells(row: EpochResult, names: list[str]) -> list[str]:
    means = [format_metric(name, row.held_out[name]) if name in row.held_out else "" for name in names]
    pace = f"{row.samples / row.seconds:,.0f}" if row.seconds else ""
    return [str(row.epoch + 1), f"{row.train_loss:.4f}", *means, pace]
