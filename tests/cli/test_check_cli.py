"""`opstage check` on a user's own file: what its flags mean, what it finds, how it ends."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.cli.check.checks import check_user
from opstage.cli.check.request import Asked, Request
from opstage.interpreters.shape_check.formats.document import CheckOutcome
from opstage.safetensors_files import encode
from tests.cli.conftest import Command

MODEL = """
import numpy as np
import opstage
from opstage import Spec
from opstage.init import Declaration, zeros

declared = {"w": Declaration((10, 64), zeros), "b": Declaration((10,), zeros)}
specs = {"w": Spec("10 64"), "b": Spec("10")}
arrays = {"w": np.zeros((10, 64)), "b": np.zeros(10)}

def init_params():
    return arrays

def init_seeded(seed, scale=1.0):
    return declared

def init_sized(width):
    return declared

class Module:
    def state_dict(self):
        return arrays

module = Module()
texts = {"w": "10 64"}

def loss(ops, params, x, y):
    return ops.cross_entropy(ops.linear(params["w"], params["b"], x), y)

def nested(ops, params, batch, *, scale):
    return ops.reduce_mean(ops.linear(params["w"], params["b"], batch["x"]) * scale)

def stateful(ops, params, state, x):
    return ops.reduce_mean(ops.linear(params["w"], params["b"], x)), opstage.Aux(state={"n": state["n"] + 1.0})

def many(ops, params, *batch):
    return ops.cross_entropy(ops.linear(params["w"], params["b"], batch[0]), batch[1])

def formed(ops, x, train=False):
    return ops.relu(x) if train else ops.exp(ops.relu(x))

def adds(ops, x, y, scale=2.0):
    return ops.add(x, y)

def halves(ops, x):
    return ops.reshape(x, shape=(x.shape[0], x.shape[1] // 2, 2))

class Holder:
    @staticmethod
    def loss(ops, x):
        return ops.sum(x)

@opstage.shapes("x: B 64", "y: B int64", params=specs, where=["B <= 512"])
def good(ops, params, x, y):
    return loss(ops, params, x, y)

@opstage.shapes("x: B 60", "y: B int64", params=init_params)
def bad(ops, params, x, y):
    return loss(ops, params, x, y)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "my_model.py").write_text(MODEL)
    return tmp_path


def outcomes(word: str, flags: str = "", **more: Any) -> list[CheckOutcome]:
    """What the process of a file finds, found in this one."""
    file, _, function = word.partition(":")
    lists: dict[str, list[str]] = {"inputs": [], "where": [], "param": []}
    words = iter(shlex.split(flags))
    for flag in words:
        name = {"--input": "inputs", "--where": "where", "--param": "param"}[flag]
        lists[name].append(next(words))
    asked = Asked(**{name: tuple(texts) for name, texts in lists.items()}, **more)  # type: ignore[arg-type]
    return list(check_user(Request(word, file, None, function or None, asked, 60.0, None)))


def outcome(word: str, flags: str = "", **more: Any) -> CheckOutcome:
    (one,) = outcomes(word, flags, **more)
    return one


XY = "--input 'x: B 64' --input 'y: B int64'"


@pytest.mark.parametrize(
    "params", ["declared", "specs", "arrays", "init_params", "init_seeded", "module", "my_model.py:specs"]
)
def test_parameters_from_whatever_the_file_has(folder: Path, params: str) -> None:
    found = outcome("my_model.py:loss", XY, params=params)
    assert found.ok and found.what == "one training step", found
    assert found.parameters == "650"
    assert ("params.w", "(10, 64) float32") in found.inputs


def test_parameters_by_flags_may_have_named_dims(folder: Path) -> None:
    found = outcome("my_model.py:loss", f"{XY} --param 'w: C 64' --param 'b: C'", optimizer="adamw")
    assert found.ok and found.what == "one training step"
    assert ("slots.w.0", "(C, 64) float32") in found.inputs
    assert outcome("my_model.py:loss", f"{XY} --input 'params.w: C 64' --input 'params.b: C'").what == found.what


def test_a_step_is_taken_of_losses_alone(folder: Path) -> None:
    assert outcome("my_model.py:halves", "--input 'x: B 4'").what == "the forward pass"
    assert outcome("my_model.py:loss", XY, params="specs", step=False).what == "the forward pass"
    assert outcome("my_model.py:loss", XY, params="specs", train=False).what == "the forward pass"
    refused = outcome("my_model.py:halves", "--input 'x: B 4'", step=True).unusable
    assert refused is not None and "needs its parameters" in refused.reason


def test_arguments_are_bound_by_name(folder: Path) -> None:
    swapped = outcome("my_model.py:loss", "--input 'y: B int64' --input 'x: B 64'", params="specs")
    assert swapped.ok and [name for name, _ in swapped.inputs][:4] == ["params.b", "params.w", "x", "y"]
    assert outcome("my_model.py:nested", "--input 'batch.x: B 64' --input 'scale:'", params="specs").ok
    assert outcome("my_model.py:many", XY, params="specs").ok
    assert outcome("my_model.py:Holder.loss", "--input 'x: B'").ok
    scaled = outcome("my_model.py:adds", "--input 'x: B' --input 'y: B' --input 'scale:'")
    assert scaled.ok and len(scaled.inputs) == 3


def test_state_is_a_part_of_the_step(folder: Path) -> None:
    (folder / "my_model.py").write_text(MODEL + "state = {'n': Spec('')}\n")
    found = outcome("my_model.py:stateful", "--input 'x: B 64'", params="specs", state="state")
    assert found.ok and found.what == "one training step"
    assert ("state.n", "() float32") in found.inputs


def test_the_form_is_passed_on(folder: Path) -> None:
    counts = [outcome("my_model.py:formed", "--input 'x: B'", train=train).ops for train in (True, False)]
    assert counts == [1, 2]


def test_constraints_hold_for_all_inputs(folder: Path) -> None:
    flags = "--input 'x: B N' --input 'y: B M'"
    refuted = outcome("my_model.py:adds", flags)
    assert [finding.rule for finding in refuted.errors] == ["shape"]
    assert outcome("my_model.py:adds", f"{flags} --where 'M == N'").ok
    assert outcome("my_model.py:halves", "--input 'x: B N' --where 'N % 2 == 0'").ok


def test_a_file_is_checked_by_what_it_declares(folder: Path) -> None:
    good, bad = outcomes("my_model.py")
    assert (good.target, good.ok, bad.target, bad.ok) == ("my_model.py:good", True, "my_model.py:bad", False)
    assert [d.constraint for d in good.declarations] == ["B <= 512"]
    (error,) = bad.errors
    assert error.source is not None and "ops.linear" in error.source.text
    assert any("written at my_model.py" in binding for binding in error.bindings)
    assert outcome("my_model.py:bad", "--input 'x: B 64'").ok  # a flag is nearer than what is declared


@pytest.mark.parametrize(
    ("word", "flags", "more", "message"),
    [
        ("my_model.py:loss", XY, {}, r"no shapes are given for params of loss; give its parameters (--params NAME"),
        ("my_model.py:loss", "--input 'x: B 64'", {"params": "specs"}, "no shapes are given for y of loss"),
        ("my_model.py:loss", f"{XY} --input 'xx: B'", {"params": "specs"}, "no argument 'xx' (did you mean 'x'?)"),
        ("my_model.py:loss", XY, {"params": "init_param"}, "has no 'init_param' (did you mean 'init_params'?)"),
        ("my_model.py:loss", XY, {"params": "init_sized"}, "wants an argument 'width'"),
        ("my_model.py:loss", XY, {"params": "texts"}, "params.w has no shape: it is '10 64'"),
        ("my_model.py:loss", f"{XY} --param 'w: 1'", {"params": "specs"}, "--param and --params"),
        ("my_model.py:los", XY, {}, "has no 'los' (did you mean 'loss'?)"),
        ("my_model.py:texts", XY, {}, "texts is a dict, not a function"),
        ("my_modell.py:loss", XY, {}, "no such file (did you mean 'my_model.py'?)"),
        ("my_model.py:loss", "--input 'x B 64'", {}, "expected a name, a colon and dims"),
        ("my_model.py:loss", "--input 'y: B int46'", {}, "unknown dtype 'int46' (did you mean 'int64'?)"),
        ("my_model.py:loss", "--input 'x: B' --input 'x: B'", {}, "x is given twice"),
        ("my_model.py:loss", "--input 'x: B' --input 'x.y: B'", {}, "x is a tensor already"),
        ("my_model.py:loss", XY, {"options": {"device": "cuda"}}, "device 'cuda'"),
    ],
)
def test_what_cannot_be_used_is_one_message(
    folder: Path, word: str, flags: str, more: dict[str, Any], message: str
) -> None:
    refused = outcome(word, flags, **more).unusable
    assert refused is not None and message in refused.reason, refused
    assert "\n" not in refused.reason


def test_shapes_that_cannot_be_read(folder: Path) -> None:
    for flags in (
        "--input 'x: B N' --where 'N % % 2'",
        "--input 'x: B 2**'",
        "--input 'x: B -3'",
        "--input 'x: B N' --where 'N <= 3' --where 'N >= 5'",
    ):
        refused = outcome("my_model.py:halves", flags).unusable
        assert refused is not None and "\n" not in refused.reason, flags


def test_files_are_held_against_the_program(folder: Path) -> None:
    (folder / "right.safetensors").write_bytes(encode({"w": np.zeros((10, 64)), "b": np.zeros(10)}))
    (folder / "wrong.safetensors").write_bytes(encode({"w": np.zeros((10, 60)), "bb": np.zeros(10)}))
    np.savez(folder / "right.npz", x=np.zeros((100, 64)), y=np.zeros(100, int))
    np.savez(folder / "wrong.npz", x=np.zeros((100, 8, 8)), y=np.zeros(100))
    right = outcome("my_model.py:loss", XY, params="specs", checkpoint="right.safetensors", data="right.npz")
    assert right.ok, right.errors
    wrong = outcome("my_model.py:loss", XY, params="specs", checkpoint="wrong.safetensors", data="wrong.npz")
    assert [finding.rule for finding in wrong.errors] == ["checkpoint"] * 3 + ["batch"] * 2
    text = "\n".join(finding.reason for finding in wrong.errors)
    for part in (
        "has no params.b (did you mean 'params.bb'?)",
        "params.w in wrong.safetensors is (10, 60) float64: it has 60 on axis 1 where the model has 64",
        'x is (64, 8, 8): it has rank 3 but Spec("B 64") has rank 2',
        "y is float64 but Spec(\"B\", dtype='int64') promised integers",
    ):
        assert part in text, text


def test_a_run_and_a_recipe_are_held_against_their_model(opstage: Command, tmp_path: Path) -> None:
    small = ["mlp", "--model.hidden", "8"]
    assert opstage("train", *small, "--epochs", "1", "--out", "run", "--run.plot", "false")[0] == 0
    assert opstage("check", *small, "--checkpoint", "run", "--data", "recipe")[0] == 0
    code, out, _ = opstage("check", "mlp", "--checkpoint", "run", "--format", "github")
    assert code == 1 and "params.layers.0.weight in run is (8, 64) float32" in out
    code, out, _ = opstage("check", *small, "--dtype", "float64", "--checkpoint", "run")
    assert code == 1 and "is (8,) float32: the model has float64" in out
    for path, message in [("nothing", "nothing: cannot be read: No such file"), (".", ".: holds no checkpoint")]:
        code, out, err = opstage("check", *small, "--checkpoint", path)
        assert (code, out) == (2, "") and message in err


# The command, with its processes ------------------------------------------------------------------------------------


def test_the_command_checks_files_and_models_together(opstage: Command, folder: Path) -> None:
    code, out, err = opstage("check", "my_model.py", "mlp", "--format", "json")
    assert (code, err) == (1, "")
    document = json.loads(out)
    assert (document["format"], document["version"], document["exit_code"]) == ("opstage check", 1, 1)
    assert [(t["target"], t["ok"]) for t in document["targets"]] == [
        ("my_model.py:good", True),
        ("my_model.py:bad", False),
        ("mlp", True),
    ]
    (finding,) = document["targets"][1]["findings"]
    assert finding["rule"] == "shape" and finding["location"]["file"] == str(folder / "my_model.py")


def test_the_command_on_one_function(opstage: Command, folder: Path) -> None:
    words = ["check", "my_model:loss", "--input", "x: B 64", "--input", "y: B int64", "--params", "init_params"]
    code, out, err = opstage(*words)
    assert (code, err) == (0, "")
    assert re.fullmatch(r"ok: my_model:loss, one training step: \d+ ops, .* bytes moved\n", out)
    code, out, err = opstage(*words, "-v")
    assert out.startswith("my_model:loss, one training step:\n  params.b ")
    assert out.splitlines()[-1].startswith("ok: ")
    assert opstage(*words, "--quiet") == (0, "", "")


def test_a_file_is_read_as_it_is_now(tmp_path: Path) -> None:
    """Python takes kept bytecode for that of any file as long and changed in the same second."""
    path, now = tmp_path / "changing.py", 1_700_000_000
    text = "import opstage\n\n@opstage.shapes('a: 3 4', 'b: 4 5')\n"
    text += "def product(ops, a, b):\n    return ops.matmul(a, b)\n"
    for source, code in ((text, 0), (text.replace("4 5", "6 5"), 1), (text, 0)):
        path.write_text(source)
        os.utime(path, (now, now))
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        command = [sys.executable, "-c", "from opstage.cli.main import main; main()", "check", "changing.py"]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr


def test_the_hook_passes_over_files_without_declarations(opstage: Command, folder: Path) -> None:
    (folder / "setup.py").write_text("raise SystemExit('never run')\n")
    hook = (Path(__file__).resolve().parents[2] / ".pre-commit-hooks.yaml").read_text()
    (entry,) = re.findall(r"^  entry: opstage (.*)$", hook, re.MULTILINE)
    assert opstage(*entry.split(), "setup.py") == (0, "", "")
    code, out, _ = opstage(*entry.split(), "setup.py", "my_model.py")
    assert code == 1 and "my_model.py:bad" in out and out.endswith("1 of 2 programs right, 1 with errors\n")
    code, _, err = opstage("check", "setup.py")
    assert code == 2 and "never run" in err
