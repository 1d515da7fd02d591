"""`--cluster`: the predicted step on a mesh of 1 to 1,024 ranks, by a model of machines."""

from __future__ import annotations

from typing import Any

from ...interpreters.shape_check import Report
from ...interpreters.shape_check.formats import Section
from ...interpreters.shape_check.traffic import Machines, Prediction, messages_of, predicted
from ...ops.dims.formula import show_flops, show_formula, show_size
from ...ops.errors import UsageError
from ...ops.mesh import Mesh
from ...training.program_check import Checked
from ..commands import read_sizes

_WIDE = 58
_RANKS = tuple([1 << power for power in range(11)])


def cluster_section(checked: Checked, text: str, at: str) -> Section:
    """Return the section `cluster` of a step without errors. `at` has all sizes, or all but that of one axis."""
    report, cluster, sizes = checked.report, Machines.read(text), read_sizes(at)
    assert checked.step is not None
    mesh, names = checked.step.mesh, report.program.scope.names
    unknown = [name for name in sizes if name not in names]
    if unknown:
        raise UsageError(f"--at {at}: unknown dim {unknown[0]!r}; the dims are: {', '.join(names) or 'none'}")
    ranks = [str(size) for _, size in mesh.axes if str(size) in names and str(size) not in sizes]
    missing = [name for name in names if name not in sizes and name not in ranks[:1]]
    if missing:
        wanted = ",".join([*([at] if at else []), *[f"{name}=…" for name in missing]])
        raise UsageError(f"--cluster predicts in numbers: say how large {' and '.join(missing)} is: --at {wanted}")
    each = _each(checked, cluster, mesh, sizes, ranks[0] if ranks else None)
    data = {"cluster": _said_of(cluster), "predictions": [line.data() for line in each]}
    return Section("cluster", data, "\n".join([*_head(report, cluster), *_table(each, _rows(checked), sizes)]))


class _Line:
    """The predictions for one number of ranks: with a fixed total batch (strong), and fixed rows per rank (weak)."""

    def __init__(self, ranks: int, strong: Prediction | None, weak: Prediction | None, alone: Prediction | None):
        self.ranks, self.strong, self.weak, self._alone = ranks, strong, weak, alone

    def efficiencies(self) -> tuple[float | None, float | None]:
        """Return the efficiency of both, relative to the smallest number of ranks."""
        if self._alone is None:
            return None, None
        times = self.ranks / self._alone.ranks
        strong = None if self.strong is None else self._alone.seconds / self.strong.seconds / times
        weak = None if self.weak is None else self._alone.seconds / self.weak.seconds
        return strong, weak

    def data(self) -> dict[str, Any]:
        """Return the line as plain data."""
        pairs = zip(("strong", "weak"), (self.strong, self.weak), self.efficiencies())
        found = {name: {**p._asdict(), "seconds": p.seconds, "efficiency": e} for name, p, e in pairs if p is not None}
        return {"ranks": self.ranks, **found}


def _each(checked: Checked, cluster: Machines, mesh: Mesh, sizes: dict[str, int], open_: str | None) -> list[_Line]:
    report, rows = checked.report, _rows(checked)

    def at(found: dict[str, int]) -> Prediction:
        numbers = Mesh(tuple([(axis, found.get(str(size), size)) for axis, size in mesh.axes]))
        return predicted(report, cluster, numbers, found)

    if open_ is None:
        return [_Line(at(sizes).ranks, at(sizes), None, None)]
    alone, lines = at({**sizes, open_: 1}), []
    for count in [count for count in _RANKS if count * alone.ranks <= _RANKS[-1]]:
        found = {**sizes, open_: count}
        fits = count == 1 or all(fact.holds(found) for fact in report.program.scope.facts)
        weak = at({**found, rows: sizes[rows] * count}) if rows in sizes else None
        strong = at(found) if fits else None
        lines.append(_Line(count * alone.ranks, strong, weak, alone))
    return lines


def _rows(checked: Checked) -> str:
    """Return the name of the number of rows of a batch, if it is a single name."""
    spec = next(iter(checked.batch.values()), None)
    return str(spec.entries[0]) if spec is not None and spec.entries else ""


def _said_of(cluster: Machines) -> dict[str, Any]:
    """Return the given numbers of a cluster by name."""
    every = {name: getattr(cluster, name) for name in Machines.__dataclass_fields__}
    return {name: value for name, value in every.items() if value is not None}


def _head(report: Report, cluster: Machines) -> list[str]:
    said = ", ".join(f"{name} {value:g}" for name, value in _said_of(cluster).items())
    return [
        f"cluster ({said}): predicted by the alpha-beta model, nothing measured",
        f"  a rank computes   {show_flops(report.cost.flops)}",
        f"  a rank sends      {show_formula(messages_of(report))} messages, fewer where sums are small, of "
        f"{show_size(report.traffic.sent)} in all; nothing is taken to overlap",
    ]


def _table(lines: list[_Line], rows: str, sizes: dict[str, int]) -> list[str]:
    size = f"{sizes[rows]:,}" if rows in sizes else ""
    names = ("step", "computing", "alpha", "bytes", "efficiency")
    if len(lines) == 1 and lines[0].strong is not None:
        p = lines[0].strong
        return [
            f"  {p.ranks} ranks: a step takes {_time(p.seconds)}: {_time(p.computing)} of computing, "
            f"{_time(p.latency)} of messages, {_time(p.transfer)} of their bytes"
        ]
    made = [
        f"  {'ranks':>5}  {f'{rows} = {size} in all':<{_WIDE}}  {f'{rows} = {size} a rank' if size else ''}".rstrip()
    ]
    made.append(f"  {'':>5}  {'  '.join(f'{name:>10}' for name in names)}  {'step':>9}  efficiency")
    for line in lines:
        strong, weak = line.efficiencies()
        cells = ["-"] * 5
        if line.strong is not None and strong is not None:
            p = line.strong
            cells = [*map(_time, (p.seconds, p.computing, p.latency, p.transfer)), f"{100 * strong:.0f} %"]
        end = "" if line.weak is None or weak is None else f"{_time(line.weak.seconds):>9}  {100 * weak:.0f} %"
        made.append(f"  {line.ranks:>5,}  {'  '.join(f'{cell:>10}' for cell in cells):<{_WIDE}}  {end}".rstrip())
    return made


def _time(seconds: float) -> str:
    """Format a time: `12.3 ms`."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit:
            return f"{seconds / unit:.3g} {name}"
    return f"{seconds * 1e9:.3g} ns"
