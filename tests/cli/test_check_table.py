"""`opstage check --table` and `--at`: costs beside findings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from opstage.cli.check.checks import check_user
from opstage.cli.check.request import Asked, Request
from tests.cli.conftest import Command

MODEL = """
def loss(ops, params, x):
    return ops.sum(ops.region("layer", lambda ops: ops.linear(params["w"], None, x)))

def wrong(ops, x, y):
    return ops.add(x, y)
"""


def test_a_table_stands_beneath_the_check(opstage: Command) -> None:
    code, out, _ = opstage("check", "mlp", "--model.hidden", "32", "--table")
    assert code == 0
    forward = 32 * 129 + 4 * 32 + 10 * 65 + 4 * 10  # layer, relu and dropout, layer, loss: per sample
    table = out[out.index("block / op") :].splitlines()
    assert table[-1].split()[:3] == ["total", f"{64 * 32 + 32 + 32 * 10 + 10:,}", f"{forward:,}*B"]


def test_sizes_make_numbers_of_it(opstage: Command) -> None:
    code, out, _ = opstage("check", "mlp", "--model.hidden", "32", "--table", "-v", "--at", "B=100")
    assert code == 0
    assert "x                            (100, 1, 8, 8) float32" in out
    assert out.splitlines()[-1].split()[2:5] == ["495", "kFLOP", "100.0"]
    data = json.loads(opstage("check", "mlp", "--table", "--at", "B=2", "--format", "json")[1])
    (target,) = data["targets"]
    assert target["sections"]["table"]["data"]["sizes"] == {"B": 2}
    assert target["flops"].isdecimal()


def test_a_program_of_ones_own_has_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(MODEL)

    def asked(function: str, **more: object) -> Request:
        return Request(f"own.py:{function}", "own.py", None, function, Asked(table=True, **more), 60.0, None)  # type: ignore[arg-type]

    (found,) = check_user(asked("loss", inputs=("x: B 8",), param=("w: 4 8",), at="B=3"))
    (section,) = found.sections
    assert section.name == "table" and found.ok
    layer = section.data["blocks"][0]
    assert (layer["name"], layer["amounts"]["forward_flops"]) == ("layer", 2 * 3 * 8 * 4)
    assert layer["members"][0]["operands"][0]["path"] == "params.w"
    (wrong,) = check_user(asked("wrong", inputs=("x: B 8", "y: B 9"), at="B=3", columns=60))
    assert not wrong.ok and "0 FLOP" not in wrong.sections[0].text
    (refused,) = check_user(asked("loss", inputs=("x: B 8",), param=("w: 4 8",), at="C=3"))
    assert refused.unusable is not None and "unknown dim 'C'" in refused.unusable.reason
