"""A user's program, written against `Ops[R]`, and the ways in which people import, as mypy sees them."""

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

IMPORTS = """
import opstage
import opstage.optim
from opstage.callbacks import EarlyStopping
from opstage.data import Loader
from opstage.derived import dropout
from opstage.optim import adamw, clip, schedule, sgd
from opstage.transform import grad

reveal_type(adamw)
reveal_type(clip.by_value)
reveal_type(schedule.cosine)
reveal_type(grad)
reveal_type(dropout)
reveal_type(opstage.optim.muon)
reveal_type(opstage.data.Loader)
opstage.optim.adamv
"""


@pytest.mark.slow
def test_programs_and_imports_are_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both at once, since mypy reads all of Opstage, which takes it ten seconds."""
    api = pytest.importorskip("mypy.api")
    texts = {"program.py": PROGRAM, "imports.py": IMPORTS}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("MYPYPATH", str(Path(opstage.__file__).parents[1]))
    files = [str(tmp_path / name) for name in texts]
    out, err, _ = api.run(["--strict", "--no-error-summary", "--cache-dir", str(tmp_path / "cache"), *files])
    assert err == ""
    program, imports = ([line.partition(": ")[2] for line in out.splitlines() if name in line] for name in texts)
    revealed = [line for line in program if "Revealed type" in line]
    assert '"R' in revealed[0] and "def [R" in revealed[1] and "params: dict[str, R" in revealed[1], out
    errors = [line for line in program if line.startswith("error")]
    assert len(errors) == 3, out
    for error, part in zip(errors, ('has no attribute "reluu"', '"shappe" for "reshape"', 'arguments for "relu"')):
        assert part in error, out
    assert [line for line in imports if line.startswith("error")] == [line for line in imports if "adamv" in line], out
    revealed = [line for line in imports if "Revealed type" in line]
    assert len(revealed) == 7 and not any('"Any"' in line for line in revealed), out
