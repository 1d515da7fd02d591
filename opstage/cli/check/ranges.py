"""The section and the findings of `opstage check --ranges`."""

from __future__ import annotations

from ...interpreters.shape_check import Report
from ...interpreters.shape_check.formats import Section
from ...ops.errors import UsageError
from .request import Asked

_MOST = 6  # outputs shown on a terminal


def ranges_section(report: Report, asked: Asked) -> tuple[Report, Section]:
    """Return the report with warnings and notes from its program's ranges, and the section with the ranges of its
    outputs.

    Raises UsageError for bounds that cannot be parsed, or of an unknown input.
    """
    from ...facts import ranges_of, with_ranges
    from ...facts.range_report import unbounded_text

    found = ranges_of(report, read_bounds(asked.bounds), asked.range_dtype, initial=asked.initial)
    data = {
        "dtype": found.dtype,
        "safe": found.safe,
        "unbounded": list(found.unbounded),
        "outputs": [{"path": path, "range": str(range_)} for path, range_ in found.outputs],
        "given": list(found.given),
        "assumptions": list(found.assumptions),
    }
    nothing = f"nothing was found, but {unbounded_text(found)}"
    verdict = "see the findings" if found.findings else nothing if found.unbounded else "every number is finite"
    lines = [f"ranges in {found.dtype}: {verdict}"]
    lines += [f"  {path or 'the output'} is in {range_}" for path, range_ in found.outputs[:_MOST]]
    if len(found.outputs) > _MOST:
        lines.append(f"  and {len(found.outputs) - _MOST} more outputs, which --format json has")
    lines += ["  given that:", *[f"  - {each}" for each in (*found.given, *found.assumptions)]]
    return with_ranges(report, found, strict=asked.strict), Section("ranges", data, "\n".join(lines))


def read_bounds(texts: tuple[str, ...]) -> dict[str, tuple[float, float]]:
    """Parse `x: 0 1`, a path or a pattern of paths and two numbers."""
    found = {}
    for text in texts:
        path, colon, ends = text.rpartition(":")
        try:
            low, high = map(float, ends.split())
        except ValueError:
            colon = ""
        if not colon:
            raise UsageError(f"--bounds {text!r}: expected a path and two numbers, such as 'x: 0 1'")
        found[path.strip()] = low, high
    return found
