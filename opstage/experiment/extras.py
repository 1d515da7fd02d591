"""Outputs that need optional packages: TensorBoard events (extra `tensorboard`) and the plot (extra `plot`)."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any, final

from ..atomic import WriteError
from ..ops.errors import require_extra
from .metrics import Curves


@final
class Events:
    """A TensorBoard event file in a run directory."""

    def __init__(self, folder: Path, *, steps: int = 0):
        """Record events after `steps` steps; TensorBoard drops later events of an earlier process."""
        require_extra("tensorboard", "tensorboard", "run.tensorboard")
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = Event
        self._summary: Any = Summary
        self._folder = folder
        try:
            self._writer: Any = EventFileWriter(str(folder))
        except OSError as error:
            raise WriteError(folder, error) from error
        if steps:
            self._add(Event(step=steps + 1, session_log=SessionLog(status=SessionLog.START)))

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Add a point to the curve `tag`."""
        import time

        summary = self._summary(value=[self._summary.Value(tag=tag, simple_value=value)])
        self._add(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        """Write pending events. Raises WriteError."""
        try:
            self._writer.close()
        except OSError as error:
            raise WriteError(self._folder, error) from error

    def _add(self, event: Any) -> None:
        """Queue an event. Raises WriteError, possibly for an earlier one."""
        try:
            self._writer.add_event(event)
        except OSError as error:
            raise WriteError(self._folder, error) from error


def plot_png(curves: Curves, title: str) -> bytes:
    """Return the loss and each held-out metric over steps, as a PNG."""
    require_extra("matplotlib", "plot", "run.plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    panels = curves.panels()
    figure: Any = Figure(figsize=(5.5 * len(panels), 4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for curve in panel.curves:
            axes.plot(
                *zip(*curve.points), label=_literal(curve.name), linewidth=1 if curve.faint else 2, marker=curve.marker
            )
        axes.set_xlabel("step")
        axes.set_ylabel(_literal(panel.name))
        axes.grid(alpha=0.3)
        axes.legend()
    data = BytesIO()
    figure.savefig(data, format="png", dpi=120)
    return data.getvalue()


def _literal(name: str) -> str:
    """Escape dollar signs, which delimit formulas in matplotlib."""
    return name.replace("$", r"\$")
