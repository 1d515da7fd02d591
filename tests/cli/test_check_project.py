"""`opstage check` as a linter: what a project says, which files are meant, which findings count, what is printed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import opstage as opstage_package
from opstage.cli.check import command
from opstage.cli.check.checks import check_user
from opstage.cli.check.selection import files_in, find_project, matches, may_declare
from opstage.interpreters.shape_check.rules import RULES
from opstage.ops.errors import UsageError
from tests.cli.conftest import Command

GOOD = """import opstage

@opstage.shapes("x: B 3", "y: B 3")
def add(ops, x, y):
    return ops.add(x, y)
"""
BAD = GOOD.replace("y: B 3", "y: B 4")
IDLE = GOOD.replace("ops.add(x, y)", "ops.exp(x)")
UNRELATED = "raise SystemExit('never run')\n"
MARKED = """import pytest

raise SystemExit('never run')

@pytest.mark.shapes("x: B 3")
def test_it(ops, x):
    return ops.exp(x)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """An empty folder. Files are checked in this process, which takes milliseconds, but for one test with all of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    if request.function is not test_what_is_kept_is_shown_as_what_is_new:
        monkeypatch.setattr(command, "check_each", lambda requests, cache: [list(check_user(r)) for r in requests])


def write(files: dict[str, str]) -> None:
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


def found(opstage: Command, *words: str) -> tuple[int, list[str]]:
    """The exit code, and `target: rule` for each finding, `target` for what is right."""
    code, out, _ = opstage("check", *words, "--format", "json")
    lines: list[str] = []
    for target in json.loads(out)["targets"]:
        rules = [finding["rule"] for finding in target["findings"]] or [""]
        lines += [f"{target['target']}: {rule}".removesuffix(": ") for rule in rules]
    return code, lines


# Targets --------------------------------------------------------------------------------------------------------------

TREE = {
    "models/good.py": GOOD,
    "models/deep/bad.py": BAD,
    "models/old/bad.py": BAD,
    "models/plain.py": UNRELATED,
    "models/test_marked.py": MARKED,
    "models/.venv/bad.py": BAD,
    "models/notes.txt": BAD,
    "models/runs/first/config.toml": "",
    "models/runs/first/source/bad.py": BAD,  # a copy that a run keeps
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["models"], ["models/good.py:add", "models/deep/bad.py:add: shape", "models/old/bad.py:add: shape"]),
        (["models", "--exclude", "old"], ["models/good.py:add", "models/deep/bad.py:add: shape"]),
        (["models", "--exclude", "models/old", "--exclude", "**/deep/*.py"], ["models/good.py:add"]),
        (["models/*.py"], ["models/good.py:add"]),
        (["models/**/bad.py"], ["models/deep/bad.py:add: shape", "models/old/bad.py:add: shape"]),
        (["models/good.py", "./models/good.py", "models/g*.py"], ["models/good.py:add"] * 2),
    ],
)
def test_folders_and_patterns(opstage: Command, words: list[str], expected: list[str]) -> None:
    write(TREE)
    code, lines = found(opstage, *words)
    assert [line.removeprefix("./") for line in lines] == expected
    assert code == ("shape" in "".join(expected))


def test_a_folder_with_nothing_to_check(opstage: Command) -> None:
    write({"empty/plain.py": UNRELATED})
    assert opstage("check", "empty")[:2] == (0, "nothing to check: no file there declares shapes or has a model\n")
    assert opstage("check", "empty", "--quiet") == (0, "", "")


def test_an_excluded_folder_is_said_to_be(opstage: Command) -> None:
    write({"old/plain.py": UNRELATED, "old/good.py": GOOD})
    for words in (
        ["old", "--exclude", "old"],
        ["old/*.py", "--exclude", "old"],
        [".", "--exclude", "x,y", "--exclude", "old"],
    ):
        assert opstage("check", *words)[:2] == (0, "nothing to check: old/good.py is excluded by 'old' (--exclude)\n")
    project_file("opstage.toml", ["[check]", 'include = ["old"]', 'exclude = ["g*.py"]'])
    assert opstage("check")[:2] == (
        0,
        "nothing to check: old/good.py is excluded by 'g*.py' (exclude of the project)\n",
    )


def test_what_matches_nothing_is_an_error(opstage: Command) -> None:
    code, out, err = opstage("check", "modles/*.py")
    assert (code, out) == (2, "") and "modles/*.py: matches no file or folder" in err
    project_file("opstage.toml", ["[check]", 'include = ["modles"]'])
    code, out, err = opstage("check")
    assert (code, out) == (2, "") and "include of the project: modles is not a file or folder" in err


def test_a_model_file_in_a_folder(opstage: Command) -> None:
    assert opstage("new", "model_of_mine")[0] == 0
    write({"mine/empty.py": UNRELATED})
    Path("model_of_mine.py").rename("mine/model_of_mine.py")
    code, out, _ = opstage("check", "mine")
    assert code == 0 and out.startswith("ok: mine/model_of_mine.py, one training step: ")
    assert "(B, 7)" in opstage("check", "mine", "-v", "--model.inputs", "7")[1]


@pytest.mark.parametrize(
    ("recipe", "words", "others", "same"),
    [
        ("", "", "--optimizer adamw", True),
        ("optimizer='sgd', ", "", "--optimizer sgd", True),
        ("optimizer='sgd', ", "--optimizer adam", "--optimizer adam", True),
        ("clip_norm=1.0, ", "", "--optimizer.clip_norm 1.0", True),
        ("", "", "--optimizer sgd", False),
        ("", "", "--optimizer.clip_norm 1.0", False),
        ("", "", "--optimizer.freeze *", False),
    ],
)
def test_a_model_takes_the_step_of_its_recipe(
    opstage: Command, recipe: str, words: str, others: str, same: bool
) -> None:
    assert opstage("new", "mine")[0] == 0
    file = Path("mine.py")
    file.write_text(file.read_text().replace("Recipe(", f"Recipe({recipe}"))
    told = [opstage("check", "mine.py", *each.split(), "--format", "json")[1] for each in (words, others)]
    costs = [json.loads(each)["targets"][0].get("flops") for each in told]
    assert (costs[0] == costs[1]) is same


@pytest.mark.parametrize(
    ("text", "declares"),
    [
        (GOOD, True),
        (GOOD.replace("import opstage", "from opstage import shapes").replace("@opstage.", "@"), True),
        (UNRELATED, False),
        (MARKED, False),
        (MARKED + GOOD, True),
        ("from pytest import mark\n@mark.shapes('x: B')\ndef test(ops, x): ...\n", False),
        ("import opstage\ndef make(config):\n    return 3\n", True),
        ("import opstage\nmodel: object = opstage.Model('m')\n", True),
        ("def make(config):\n    return 3\n", False),
        ("import opstage\ndef f(:\n", True),
        ("print 'Python 2'\n", False),
    ],
)
def test_which_files_have_something_to_check(tmp_path: Path, text: str, declares: bool) -> None:
    (tmp_path / "file.py").write_text(text)
    assert may_declare(tmp_path / "file.py") is declares


@pytest.mark.parametrize(
    ("path", "pattern", "named"),
    [
        ("a/b/c.py", "a", True),
        ("a/b/c.py", "b", True),
        ("a/b/c.py", "a/b", True),
        ("a/b/c.py", "a/b/", True),
        ("a/b/c.py", "b/c.py", False),
        ("a/b/c.py", "**/c.py", True),
        ("c.py", "**/c.py", True),
        ("a/b/c.py", "a/*.py", False),
        ("a/b/c.py", "a/**/*.py", True),
        ("a/b/c.py", "*.py", True),
        ("a/b/c.py", "./a", True),
        ("a+b/c.py", "a?b", True),
        ("ab/c.py", "a.", False),
    ],
)
def test_patterns(tmp_path: Path, path: str, pattern: str, named: bool) -> None:
    assert matches(tmp_path / path, pattern, tmp_path) is named


def test_a_folder_is_walked_in_order(tmp_path: Path) -> None:
    write({f"{folder}/{name}.py": "" for folder in ("b", "a", "b/c") for name in ("2", "1")})
    files = [path.as_posix() for path in files_in(".", (), tmp_path)]
    assert files == ["a/1.py", "a/2.py", "b/1.py", "b/2.py", "b/c/1.py", "b/c/2.py"]


# Projects -------------------------------------------------------------------------------------------------------------


def project_file(name: str, lines: Iterable[str]) -> None:
    prefix = "tool.opstage." if "pyproject" in name else ""
    Path(name).write_text("\n".join(line.replace("[", f"[{prefix}", 1) if line[0] == "[" else line for line in lines))


@pytest.mark.parametrize("name", ["pyproject.toml", "opstage.toml"])
def test_what_a_project_says(opstage: Command, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(TREE | {"models/deep/idle.py": IDLE})
    project_file(
        name,
        [
            "[check]",
            'include = ["models"]',
            'exclude = ["old"]',
            'ignore = ["unused-parameter"]',
            "warnings-as-errors = true",
            'per-file-ignores = { "models/deep/i*.py" = ["unused-input"] }',
        ],
    )
    lines = ["models/good.py:add", "models/deep/bad.py:add: shape", "models/deep/idle.py:add"]
    assert found(opstage) == (1, lines)
    assert found(opstage, "--ignore", "shape") == (1, lines)  # an error counts whatever is ignored
    monkeypatch.chdir("models/deep")  # a project holds in all its folders, and its patterns are from its root
    assert found(opstage, "bad.py", "idle.py") == (1, ["bad.py:add: shape", "idle.py:add"])
    assert found(opstage) == (1, ["../good.py:add", "bad.py:add: shape", "idle.py:add"])


def test_the_nearest_project_holds(opstage: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    write({"a/pyproject.toml": "[tool.ruff]\n", "a/b/c.py": BAD, "a/opstage.toml": '[check]\nignore = ["shape"]\n'})
    write({"opstage.toml": '[check]\nignore = ["dtype"]\n'})
    assert find_project(Path.cwd()).check.ignore == ("dtype",)
    assert find_project(Path.cwd() / "a" / "b").check.ignore == ("shape",)
    Path("a/opstage.toml").unlink()
    assert find_project(Path.cwd() / "a" / "b").check.ignore == ("dtype",)


@pytest.mark.parametrize("target", ["good.py", "good.py:add", "mlp", "model.py"])
def test_options_override_in_one_order(opstage: Command, monkeypatch: pytest.MonkeyPatch, target: str) -> None:
    """Defaults, the project, a file, the environment, flags: for functions and models alike."""
    write({"good.py": GOOD, "file.toml": '[options]\ndtype = "float32"\n', "flat.toml": 'dtype = "float32"\n'})
    assert opstage("new", "model", "--quiet")[0] == 0

    def dtype(*words: str) -> Any:
        out = opstage("check", target, *words, "--format", "json")[1]
        return json.loads(out)["targets"][0]["inputs"][0]["type"].split()[-1]

    assert dtype() == "float32"
    project_file("opstage.toml", ["[options]", 'dtype = "float64"'])
    assert dtype() == "float64"
    assert dtype("--config", "file.toml") == "float32"
    if target.startswith("good"):
        assert dtype("--config", "flat.toml") == "float32"
    monkeypatch.setenv("OPSTAGE_DTYPE", "float64")
    assert dtype("--config", "file.toml") == "float64"
    assert dtype("--config", "file.toml", "--dtype", "float32") == "float32"
    assert dtype("--options.dtype", "float32") == "float32"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[check]", 'selct = ["shape"]'], r":2: \[check\] has no key 'selct' \(did you mean 'select'\?\)"),
        (["[check]", 'select = ["shap"]'], r":2: select: unknown rule 'shap' \(did you mean 'shape'\?\)"),
        (["[check]", 'select = "shape"'], ":2: check.select: 'shape' is not a list, each a string"),
        (["[check]", "strict = 1"], ":2: check.strict: 1 is not true or false"),
        (["[check]", 'time-limit = "soon"'], "'soon' is not a duration"),
        (["[check]", 'per-file-ignores = ["a"]'], "is not a table, each a list, each a string"),
        (["[option]", "dtype = 1"], r"no table \[option\] \(did you mean 'options'\?\)"),
        (["[options]", 'dtype = "float16"'], "dtype: "),
        (["[check"], "not a TOML file"),
    ],
)
@pytest.mark.parametrize("name", ["pyproject.toml", "opstage.toml"])
def test_a_project_file_that_cannot_be_used(opstage: Command, name: str, lines: list[str], message: str) -> None:
    project_file(name, lines)
    with pytest.raises(UsageError, match=message):
        find_project(Path.cwd())
    code, out, err = opstage("check", "mlp")
    assert (code, out) == (2, "") and name in err and err.count("\n") == 1


# Rules and comments ---------------------------------------------------------------------------------------------------


def test_rules_by_name(opstage: Command) -> None:
    write({"both.py": BAD.replace("ops.add", "ops.reduce_mean(ops.argmax(x, axis=1)), ops.add"), "idle.py": IDLE})
    assert found(opstage, "both.py")[1] == ["both.py:add: dtype", "both.py:add: shape"]
    errors = (1, ["both.py:add: dtype", "both.py:add: shape"])
    for chosen in (["--select", "shape,undecided"], ["--select", "unused-input"], ["--ignore", "shape,dtype"]):
        assert found(opstage, "both.py", *chosen) == errors
        assert opstage("check", "both.py", *chosen)[1].endswith(
            "\n2 errors\n--select and --ignore choose among warnings and notes; errors always count\n"
        )
    assert opstage("check", "both.py", "--ignore", "unused-input")[1].endswith("\n2 errors\n")
    assert found(opstage, "idle.py", "--select", "shape") == (0, ["idle.py:add"])
    assert found(opstage, "idle.py", "--warnings-as-errors") == (1, ["idle.py:add: unused-input"])
    assert found(opstage, "idle.py", "--warnings-as-errors", "--ignore", "unused-input") == (0, ["idle.py:add"])


def test_every_finding_has_a_rule_that_is_listed() -> None:
    named: set[str] = set()
    for path in Path(opstage_package.__file__).parent.rglob("*.py"):
        if "Finding(" in (text := path.read_text()):
            named |= {*re.findall(r'\brule(?:: str)? ?= ?"([\w-]+)"', text)}
    assert len(named) > 5 and named <= {*RULES}


def test_all_rules_are_listed(opstage: Command) -> None:
    code, out, _ = opstage("check", "--rules")
    rows = [re.split(r"  +", line, maxsplit=1) for line in out.splitlines()]
    assert (code, {row[0]: row[1] for row in rows}) == (0, RULES)


IGNORE = "  # opstage: ignore"


@pytest.mark.parametrize(
    ("comment", "rules"),
    [
        ("", ["shape"]),
        (IGNORE, []),
        (f"{IGNORE}[shape]", []),
        (f"{IGNORE}[dtype, shape]", ["unused-suppression"]),
        (f"{IGNORE}[dtype]", ["shape", "unused-suppression"]),
        (f"{IGNORE}[shap]", ["shape", "unused-suppression"]),
        ("  # see opstage: ignore[shape] in the guide", ["shape"]),
        ("  # noqa  # opstage: ignore[shape]", []),
    ],
)
def test_comments_suppress_findings_of_their_line(opstage: Command, comment: str, rules: list[str]) -> None:
    write({"bad.py": BAD.rstrip() + f"{comment}\n"})
    assert found(opstage, "bad.py")[1] == [f"bad.py:add: {rule}".removesuffix(": ") for rule in rules or [""]]
    one = [*{*rules} - {"unused-suppression"}]  # of one function nobody knows what its file's comments are for
    flags = ["--input", "x: B 3", "--input", "y: B 4"]
    assert found(opstage, "bad.py:add", *flags)[1] == [f"bad.py:add: {rule}".removesuffix(": ") for rule in one or [""]]


def test_what_is_suppressed_is_counted(opstage: Command) -> None:
    write({"bad.py": BAD, "idle.py": IDLE})
    flags = ["--ignore", "unused-input"]
    write({"bad.py": BAD.rstrip() + f"{IGNORE}[shape]\n"})
    line = "ok: idle.py:add, the forward pass: 1 ops, 3*B flops, 24*B bytes moved, 1 suppressed\n"
    assert opstage("check", "idle.py", *flags)[1] == line
    wrong = "ok: bad.py:add, the forward pass: 1 error suppressed\n"  # what the program costs is not known then
    assert opstage("check", "bad.py", *flags)[1] == wrong
    targets = json.loads(opstage("check", ".", *flags, "--format", "json")[1])["targets"]
    assert [target["suppressed"] for target in targets] == [["error"], ["warning"]]


def test_a_comment_is_one_in_the_program_alone(opstage: Command) -> None:
    text = '"""A text with # opstage: ignore[shape]."""\n' + GOOD.rstrip() + f"{IGNORE}\n"
    write({"good.py": text})
    code, out, _ = opstage("check", "good.py")
    assert code == 0 and "warning[unused-suppression]: this line has no finding" in out
    assert "good.py:6:27" in out and "fix: take the comment out" in out
    assert opstage("check", "good.py", "--warnings-as-errors")[0] == 1
    assert found(opstage, "good.py", "--ignore", "unused-suppression") == (0, ["good.py:add"])


def test_a_comment_has_a_use_where_its_rule_is_ignored_today(opstage: Command) -> None:
    for comment in (IGNORE, f"{IGNORE}[unused-input]"):
        lines = [line + (comment if line.startswith("def ") else "") for line in IDLE.splitlines()]
        write({"idle.py": "\n".join(lines) + "\n"})
        for flags in ((), ("--ignore", "unused-input"), ("--select", "shape,unused-suppression")):
            assert found(opstage, "idle.py", *flags) == (0, ["idle.py:add"]), (comment, flags)


def test_undecided_conditions_are_a_rule(opstage: Command) -> None:
    where = 'where=["X*X*X + Y*Y*Y == 4104", "X < Y"]'  # 2³ + 16³ = 9³ + 15³, which no small search finds
    text = GOOD.replace('"x: B 3", "y: B 3"', f'"x: X", "y: Y", {where}').replace(
        "ops.add(x, y)", "ops.reshape(x, shape=(9,)), y"
    )
    write({"open.py": text})
    assert "right only if" in opstage("check", "open.py")[1]
    assert "right only if" not in opstage("check", "open.py", "--ignore", "undecided")[1]
    assert found(opstage, "open.py", "--strict") == (1, ["open.py:add: undecided"])
    project_file("opstage.toml", ["[check]", "strict = true"])
    assert found(opstage, "open.py")[0] == 1
    assert found(opstage, "open.py", "--no-strict")[0] == 0


# What is printed ------------------------------------------------------------------------------------------------------


def test_a_line_for_what_is_right(opstage: Command) -> None:
    write({"a.py": GOOD, "b.py": GOOD, "c.py": BAD})
    line = "ok: {}.py:add, the forward pass: 1 ops, 3*B flops, 36*B bytes moved\n"
    assert opstage("check", "a.py")[1] == line.format("a")
    code, out, _ = opstage("check", ".")
    assert code == 1 and out.startswith(
        line.format("a") + line.format("b") + "\nc.py:add, the forward pass:\n\nerror[shape]"
    )
    assert out.endswith("\n1 error\n\n2 of 3 programs right, 1 with errors\n")
    write({"c.py": IDLE})
    assert opstage("check", ".", "--warnings-as-errors")[1].endswith(
        "\n1 warning, and warnings are errors\n\n2 of 3 programs right, 1 with warnings\n"
    )
    assert opstage("check", ".")[1].endswith(", 1 warning\n\n3 of 3 programs right\n")
    write({"c.py": BAD})
    quiet = opstage("check", ".", "-q")[1]
    assert quiet.startswith("c.py:add, the forward pass:\n\nerror[shape]") and quiet.endswith("\n1 error\n")
    assert "  x                            (B, 3) float32" in opstage("check", "a.py", "-v")[1]


def test_what_is_kept_is_shown_as_what_is_new(opstage: Command) -> None:
    write({"a.py": GOOD, "b.py": BAD, "c.py": "print('said')\n" + IDLE})
    new = opstage("check", ".", "--no-cache")
    assert [opstage("check", "."), opstage("check", ".")] == [new, new]
    assert "said" in new[1]
    write({"b.py": GOOD})
    assert opstage("check", ".", "-q")[0] == 0


def test_a_function_called_loss_gives_a_scalar(opstage: Command) -> None:
    loss = GOOD.replace("def add", "def loss")
    write({"loss.py": loss, "mean.py": loss.replace("ops.add(x, y)", "ops.reduce_mean(ops.add(x, y))")})
    assert found(opstage, ".") == (0, ["loss.py:loss: no-scalar-loss", "mean.py:loss"])
