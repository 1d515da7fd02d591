"""A user's program, written against `Ops[R]`, as mypy sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

import opstage

PROGRAM = """
from typing import TypeVar

import opstage
from opstage import Ops, Ref, Spec

R = TypeVar("R", bound=Ref)


@opstage.shapes("x: B 3 32 32", "y: B int64", where=["B <= 512"])
def loss(ops: Ops[R], params: dict[str, R], x: R, y: R) -> R:
    h = ops.reshape(x, shape=(x.shape[0], 3072))
    return ops.cross_entropy(ops.relu(ops.linear(params["w"], params["b"], h)), y)


def wrong(ops: Ops[R], x: R) -> R:
    reveal_type(ops.relu(x))
    reveal_type(loss)
    ops.reluu(x)
    ops.reshape(x, shappe=(1,))
    return ops.relu()


report = opstage.check(loss, {"w": Spec("10 3072"), "b": Spec("10")}, Spec("B 3 32 32"), Spec("B", dtype="int64"))
print(report.ok, report.errors[0].reason)
"""


@pytest.mark.slow  # mypy reads all of Opstage
def test_a_users_program_is_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("MYPYPATH", str(Path(opstage.__file__).parents[1]))
    out, err, _ = api.run(
        ["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), str(tmp_path / "program.py")]
    )
    assert err == ""
    told = [line.partition(": ")[2] for line in out.splitlines() if "program.py" in line]
    revealed = [line for line in told if "Revealed type" in line]
    assert '"R' in revealed[0] and "def [R" in revealed[1] and "params: dict[str, R" in revealed[1], out
    errors = [line for line in told if line.startswith("error")]
    assert len(errors) == 3, out
    for error, part in zip(errors, ('has no attribute "reluu"', '"shappe" for "reshape"', 'arguments for "relu"')):
        assert part in error, out
