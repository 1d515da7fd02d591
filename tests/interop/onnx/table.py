"""The ONNX operators of each op, by models of the samples; `python -m tests.interop.onnx.table` writes the page."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import opstage
from opstage import Options
from opstage.interop.onnx.export import model_of
from opstage.interop.onnx.operators import EXPORTS
from opstage.interop.onnx.writer import is_empty
from opstage.ops.collective import CollectiveOps
from opstage.ops.primitive import Primitive
from opstage.ops.protocol import OPS
from tests.conformance.harness import inputs, program_of
from tests.interop.onnx.runs import operators
from tests.samples import SAMPLES

PAGE = Path(__file__).resolve().parents[3] / "docs" / "guide" / "onnx-operators.md"
NOT_IN_ONNX = frozenset({"cholesky", "cofactor", "eigh", "qr", "slogdet", "solve", "svd", "triangular_solve"})
"""Ops that ONNX has no operator for, and that are none of others: a model with one is refused, by its name."""
HEAD = "| op | ONNX operators | note |\n|---|---|---|\n"


@cache
def table() -> str:
    """A row for each method of Ops."""
    return HEAD + "".join(f"{_row(method)}\n" for method in sorted(OPS))


def _row(method: str) -> str:
    if method in NOT_IN_ONNX:
        return f"| `{method}` | not supported | |"
    if method in vars(CollectiveOps):
        return f"| `{method}` | as on one rank | |"
    primitives: set[Primitive] = set()
    written: set[str] = set()
    for sample in SAMPLES:
        if sample.op == method:
            options = Options(dtype="float32")
            graph = opstage.record(program_of(sample), *inputs(sample, "float32"), options=options)
            called = {equation.primitive for equation in graph.body.equations}
            primitives |= called
            if any(is_empty(type_) for type_ in graph.output_types):
                continue  # a constant, whatever the op
            written |= operators(model_of(graph)) - {"Identity"}
    names = ", ".join(f"`{name}`" for name in sorted(written)) or "none: its operand"
    notes = sorted({EXPORTS[p].note for p in primitives if p in EXPORTS and EXPORTS[p].note})
    if not primitives <= EXPORTS.keys():
        names = f"decomposition: {names}"
    return f"| `{method}` | {names} |{' ' if notes else ''}{'; '.join(notes)} |"


def page() -> str:
    """The page with its table up to date."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(HEAD)
    lines = rest.splitlines(keepends=True)
    after = "".join(lines[next((i for i, line in enumerate(lines) if not line.startswith("|")), len(lines)) :])
    return before + table() + after


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
