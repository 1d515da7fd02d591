"""`--compare A,B`: wrong kernels of another package are named, with their line; rounding is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opstage import models
from opstage.cli import main
from opstage.interpreters import registry
from opstage.ops.errors import UsageError
from opstage.options import Options
from opstage.runs import configure
from opstage.runs.backend_comparison import compare, side_options

PLUGIN = '''
"""Interpreters that are wrong on purpose, each in one place."""
from opstage.interpreters.registry import make_interpreter
from opstage.transforms.transparent import Transparent


class Wrong(Transparent):
    """The eager interpreter, with the results of some ops off by a thousandth."""

    relus = 0

    def __init__(self, options, is_wrong):
        super().__init__(make_interpreter(options.replace(backend="eager")))
        self.is_wrong = is_wrong

    def bind(self, primitive, refs, static, /):
        outs = self.inner.bind(primitive, refs, static)
        self.relus += primitive.name == "relu"
        return (outs[0] * outs[0].dtype.type(1.001), *outs[1:]) if self.is_wrong(self, primitive.name) else outs


def forward(options):
    return Wrong(options, lambda ops, op: op == "relu")


def gradient(options):
    return Wrong(options, lambda ops, op: op == "matmul" and ops.cursor.quiet and ops.cursor.region.name == "layers.0")


def update(options):
    return Wrong(options, lambda ops, op: op == "adamw_update")


def now(options):
    """Wrong at the fifth relu, whatever its operands are."""
    return Wrong(options, lambda ops, op: op == "relu" and ops.relus == 5)
'''


@pytest.fixture
def wrong_backends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with wrong interpreters, found by its entry points."""
    (tmp_path / "wrong_kernels.py").write_text(PLUGIN)
    information = tmp_path / "wrong_kernels-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong-kernels\nVersion: 1.0\n")
    entries = [f"wrong-{name} = wrong_kernels:{name}" for name in ("forward", "gradient", "update", "now")]
    (information / "entry_points.txt").write_text("[opstage.interpreters]\n" + "\n".join(entries) + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._third_party.cache_clear()
    yield
    registry._third_party.cache_clear()


SETTINGS = configure("mlp", values={"model": {"hidden": (8, 8)}, "data": {"batch_size": 16}}, environ={}).settings


@pytest.mark.parametrize("side", ["eager", "eager:float64", "eager:fast_kernels=false"])
def test_right_interpreters_agree(side: str) -> None:
    found = compare(SETTINGS, ["eager", side])
    assert found.divergence is None
    assert found.steps == 3
    assert found.ops > 100
    assert str(found).startswith(f"eager and {side} agree on the values and gradients of {found.ops} ops in 3")


def test_a_wrong_forward_kernel_is_named_with_its_line_and_both_values(wrong_backends: None) -> None:
    found = compare(SETTINGS, ["eager", "wrong-forward"])
    divergence = found.divergence
    assert divergence is not None
    assert (divergence.step, divergence.phase, divergence.op, divergence.region) == (1, "forward", "relu", "layers.0")
    assert divergence.source is not None
    assert "ops.relu(" in divergence.source.text
    assert Path(divergence.source.file).parent == Path(models.__file__).parent
    right, wrong = divergence.values
    assert wrong == pytest.approx(1.001 * right, rel=1e-6)
    assert divergence.isolated
    text = str(found)
    assert f"{Path(divergence.source.file).name}:{divergence.source.line} (layers.0)" in text
    assert divergence.source.text in text
    assert repr(right) in text and repr(wrong) in text


PARTS = [
    # the sides; step, phase, op and region where they part; the line of the user; whether equal operands show it too
    ("eager,wrong-gradient", (1, "gradient", "matmul", "layers.0"), "ops.linear(", False),
    ("eager,wrong-gradient:float64", (1, "gradient", "matmul", "layers.0"), "ops.linear(", False),
    ("wrong-update,eager", (1, "update", "adamw_update", "update"), "", True),
    # two relus a step: the fifth is the first of step 3, and on equal operands it is right again
    ("eager,wrong-now", (3, "forward", "relu", "layers.0"), "ops.relu(", False),
]


@pytest.mark.parametrize(("sides", "place", "line", "isolated"), PARTS, ids=[sides for sides, *_ in PARTS])
def test_a_wrong_kernel_is_named(wrong_backends: None, sides: str, place: object, line: str, isolated: bool) -> None:
    found = compare(SETTINGS, sides.split(","))
    divergence = found.divergence
    assert divergence is not None and divergence.isolated == isolated
    assert (divergence.step, divergence.phase, divergence.op, divergence.region) == place
    assert line in divergence.source.text if divergence.source is not None else not line
    assert ("on equal operands it agrees" in str(found)) != isolated


def test_sides_are_read_in_any_order() -> None:
    base = Options()
    assert side_options("float64:eager", base) == base.replace(dtype="float64")
    assert side_options("eager:seed=3:fast_kernels=false", base) == base.replace(seed=3, fast_kernels=False)
    assert side_options("cuda:1:compiled", base) == base.replace(device="cuda:1", backend="compiled")
    assert side_options("eager:cuda:float32", base) == base.replace(device="cuda")


@pytest.mark.parametrize(
    ("sides", "message"),
    [
        (["eager"], "needs two sides"),
        (["eager", ""], "needs two sides"),
        (["eager", "eagr"], r"'eagr' is not a backend, device or dtype \(did you mean 'eager'\?\)"),
        (["eager", "eager:sed=1"], r"^'eager:sed=1': unknown option 'sed' \(did you mean 'seed'\?\); the options are"),
        (["eager", "eager:SEED=1"], r"^'eager:SEED=1': unknown option 'SEED'"),
        (["eager", "eager:seed=x"], r"^'eager:seed=x': 'x' is not a seed"),
        (["eager", "shape_check"], "computes no values"),
    ],
)
def test_unusable_sides_are_one_error(sides: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(SETTINGS, sides)
    with pytest.raises(UsageError, match="at least 1 step"):
        compare(SETTINGS, ["eager", "eager"], steps=0)


@pytest.mark.parametrize(("side", "code", "words"), [("wrong-forward", 1, "part\n"), ("eager:float64", 0, "agree on")])
def test_the_command_ends_with_1_where_the_sides_part(
    wrong_backends: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    side: str,
    code: int,
    words: str,
) -> None:
    command = ["opstage", "train", "mlp", "--model.hidden", "8", "--compare", f"eager,{side}", "--compare-steps", "1"]
    monkeypatch.setattr(sys, "argv", command)
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == code
    assert capsys.readouterr().out.startswith(f"eager and {side} {words}")
