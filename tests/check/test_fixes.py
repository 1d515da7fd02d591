"""A suggested fix, written into the program as it stands, mends the call; and no other call is given one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import opstage
from opstage import Spec
from opstage.interpreters.shape_check.finding import Finding
from tests.check.buggy import BUGS, Bug
from tests.check.buggy.bug import step_report


def mended(line: str, finding: Finding) -> str | None:
    """The line with the fix in it; None for a fix that is not one expression, or speaks of another place."""
    source = finding.source
    assert source is not None
    _, _, code = finding.fix.partition(": ")
    call = line[source.column - 1 : source.end - 1]
    if not code.startswith("ops.") or not call:
        return None
    if code.startswith(f"ops.{finding.op}("):
        return line.replace(call, code)
    kept = code.replace(", keepdims=True", "")
    if kept != code:
        return line.replace(kept, code)
    operand = code[code.index("(") + 1 :]
    while operand and operand not in call:  # what the new call is wrapped around
        operand = operand[:-1]
    operand = operand.removesuffix(", ")
    return line.replace(call, call.replace(operand, code)) if operand else None


CODED = {
    name: bug
    for name, bug in BUGS.items()
    if bug.fix and bug.verdict == "refuted" and "declare" not in bug.fix and bug.fix != 'Spec("B T", dtype="int64")'
}


@pytest.mark.parametrize("bug", CODED.values(), ids=list(CODED))
def test_a_fix_mends_the_call(bug: Bug, tmp_path: Path) -> None:
    finding = step_report(bug.build(tmp_path)).errors[0]
    assert finding.source is not None
    file = Path(finding.source.file)
    if file.parent != tmp_path:
        return  # in a layer that other calls share
    lines = bug.source().splitlines()
    number = finding.source.line - 1
    line = mended(lines[number], finding)
    if line is None:
        return
    assert line != lines[number], finding
    changed = bug.source().replace(lines[number], line)
    right = bug.source_of_module()
    if changed == right:
        return
    again = Bug(bug.name, bug.kind, right, changed, "", "", file=bug.file)
    errors = step_report(again.build(tmp_path)).errors
    assert all((e.source, e.op) != (finding.source, finding.op) for e in errors), errors


# Where nothing but the shapes would speak for a change ----------------------------------------------------------------


def one_of(ops: Any, x: Any, y: Any) -> Any:
    return ops.add(x, y)


def product(ops: Any, x: Any, y: Any) -> Any:
    return ops.matmul(x, y)


def sevenths(ops: Any, x: Any) -> Any:
    return ops.reshape(x, shape=(x.shape[0], 6, 5))


def joined(ops: Any, x: Any, y: Any) -> Any:
    return ops.concat([x, y], axis=0)


@pytest.mark.parametrize(
    ("program", "specs"),
    [
        (one_of, (Spec("M N"), Spec("N M"))),  # either could be transposed
        (one_of, (Spec("B 6"), Spec("6"))),  # one draw for the batch, or a parameter?
        (one_of, (Spec("B 6"), Spec("B 4"))),
        (product, (Spec("7 5"), Spec("7 5"))),  # either could be transposed
        (product, (Spec("7 5"), Spec("6 4"))),
        (sevenths, (Spec("B 42"),)),  # 7 for 5, or 8.4 for 6: one fits
        (joined, (Spec("2 3"), Spec("4 5"))),
    ],
)
def test_nothing_is_guessed(program: Any, specs: tuple[Spec, ...]) -> None:
    (finding,) = opstage.check(program, *specs).errors
    if program is sevenths:
        assert finding.fix == "axis 2 is 7, not 5: ops.reshape(x, shape=(x.shape[0], 6, 7))"
    else:
        assert not finding.fix, finding


def test_a_matrix_is_turned_where_one_alone_fits() -> None:
    (finding,) = opstage.check(product, Spec("7 5"), Spec("6 5")).errors
    assert finding.fix == "transpose y: ops.transpose2d(y)"


def test_tensors_are_joined_where_alone_they_differ() -> None:
    (finding,) = opstage.check(joined, Spec("B 3"), Spec("B 5")).errors
    assert finding.fix == "join them along axis=1, where alone they differ"
