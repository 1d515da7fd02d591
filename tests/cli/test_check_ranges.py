"""`opstage check --ranges`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

NET = """import opstage

@opstage.shapes("x: B 10")
def net(ops, x):
    return ops.exp(x)
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(NET)
    return "net.py:net"


def test_what_may_overflow_is_a_warning(opstage: Command, net: str) -> None:
    code, out, _ = opstage("check", net, "--ranges")
    assert code == 0 and "warning[overflow]" in out and "net.py:5" in out
    assert opstage("check", net, "--ranges", "--warnings-as-errors")[0] == 1
    assert opstage("check", net, "--ranges", "--warnings-as-errors", "--ignore", "overflow")[0] == 0
    assert opstage("check", net, "--warnings-as-errors")[0] == 0


def test_bounds_prove_it_safe(opstage: Command, net: str) -> None:
    code, out, _ = opstage("check", net, "--ranges", "--bounds", "x: 0 1", "--range-dtype", "float16")
    assert code == 0 and "every number is finite" in out
    out = opstage("check", net, "--ranges", "--bounds", "x: 0 1", "--format", "json")[1]
    assert '"safe": true' in json.dumps(json.loads(out))


STRICT = {
    "an output without a bound": ("x * x", False, "no bound of output is known", ()),
    "one that has a bound for all inputs": ("ops.softmax(x, axis=1)", True, "every number is finite", ()),
    "a declared range": ("x * x", True, "every number is finite", ("--bounds", "x: -1 1")),
    "a power": ("ops.power(x, x)", False, "sqrt-of-negative", ("--bounds", "x: -1 1")),
    "a divisor of 0": ("ops.mod(x, x)", False, "division-by-zero", ("--bounds", "x: -1 1")),
    "a cast": ("ops.cast(x, dtype='int32')", False, "integer-overflow", ()),
    "a product": ("ops.reduce_prod(x, axis=1)", False, "overflow", ()),
    "an ignored finding": ("ops.mod(x, x)", True, "", ("--bounds", "x: -1 1", "--ignore", "division-by-zero")),
}


@pytest.mark.parametrize("name", STRICT)
def test_what_is_not_proved_finite_is_an_error_if_strict(opstage: Command, net: str, name: str) -> None:
    formula, proved, message, words = STRICT[name]
    Path("net.py").write_text(NET.replace("ops.exp(x)", formula))
    assert opstage("check", net, "--ranges", *words)[0] == 0
    code, out, err = opstage("check", net, "--ranges", "--strict", *words)
    assert code == (0 if proved else 1) and message in out + err, out + err
    assert ("every number is finite" in out) == (proved and bool(message))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ranges", "--bounds", "x 0 1"), "expected a path and two numbers"),
        (("--ranges", "--bounds", "z: 0 1"), "bounds: 'z' matches no input"),
        (("--ranges", "--bounds", "x: 1 0"), "expected (low, high)"),
        (("--bounds", "x: 0 1"), "for --ranges, which is not given"),
        (("--range-dtype", "bfloat16"), "for --ranges, which is not given"),
        (("--ranges", "--range-dtype", "bfloat"), "did you mean 'bfloat16'"),
    ],
)
def test_bad_input_is_one_error(opstage: Command, net: str, words: tuple[str, ...], message: str) -> None:
    code, out, err = opstage("check", net, *words)
    assert code == 2 and message in out + err


LOSS = """import opstage
from opstage.init import Declaration, build, zeros

params = build({"w": Declaration((3, 10), zeros), "b": Declaration((3,), zeros)})

@opstage.shapes("x: B 10", "y: B int64", params=params, claims=["uses:x"])
def loss(ops, params, x, y):
    return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)
"""


@pytest.mark.parametrize("target", ["mlp", "loss.py:loss"])
def test_bounds_may_be_of_inputs_that_the_step_alone_has(
    opstage: Command, net: str, target: str, tmp_path: Path
) -> None:
    """Claims are about the forward pass, ranges of the training step, which has the learning rate too."""
    Path("loss.py").write_text(LOSS)
    words = ["check", target, "--prove", "uses:x", "--bounds", "lr: 0 1"]
    code, out, err = opstage(*words, "--ranges")
    assert "lr is in [0, 1], as stated" in out, out + err
    code, out, err = opstage(*words)
    assert code == 2 and "'lr' matches no input; inputs of the forward pass" in out + err and "--ranges" in out + err
    code, out, err = opstage(*words[:-1], "nothing: 0 1", "--ranges")
    assert code == 2 and "'nothing' matches no input" in out + err


def test_few_paths_of_many_are_named(opstage: Command) -> None:
    code, _, err = opstage("check", "gpt", "--ranges", "--bounds", "z: 0 1")
    assert code == 2 and "more" in err and len(err) < 600
