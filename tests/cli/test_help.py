"""What --help prints: groups, widths and mood; what is suggested; and what a shell completes."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from opstage.cli.commands import COMMANDS, GROUPED, Command, cli
from opstage.models import MODELS
from opstage.optim import SHIPPED
from tests.cli.conftest import Command as Run
from tests.cli.conftest import refusal

WIDTH = 80
UNFIT = re.compile(r"(The|A|An|What|Whether|How|Where|Which|As|Those|All|That|Its?|Say|Hold|Whose|Of|For|\w+[^s]s) ")
"""How a summary begins that is neither imperative nor a noun phrase; --help of nouns in the plural are listed below."""
PLURALS = ("Sizes", "Passes", "Examples", "Parameters", "Bounds", "Splits", "Loss")


def command_of(name: str) -> tuple[click.Command, click.Context]:
    parent = click.Context(cli, info_name="opstage", terminal_width=WIDTH, **cli.context_settings)
    command = cli.get_command(parent, name)
    assert command is not None
    return command, click.Context(command, info_name=name, parent=parent, terminal_width=WIDTH)


def test_group_help_summarises_each_command_on_one_line(opstage: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    code, out, err = opstage("--help")
    assert (code, err) == (0, "") and max(map(len, out.splitlines())) <= WIDTH
    assert re.findall(r"^(\w+):$", out, re.MULTILINE) == ["Options", *GROUPED]
    for name, (_, summary) in [pair for commands in GROUPED.values() for pair in commands.items()]:
        assert f"\n  {name:<14}  {summary}\n" in f"{out}\n"
        assert summary.endswith(".") and not UNFIT.match(summary), summary


@pytest.mark.parametrize("name", COMMANDS)
def test_command_help_fits_a_terminal_and_is_imperative(name: str) -> None:
    command, context = command_of(name)
    text = command.get_help(context)
    assert isinstance(command, Command) and max(map(len, text.splitlines())) <= WIDTH
    summary = (command.help or "").split("\n\n")[0]
    assert len(summary) <= 2 * WIDTH and summary.endswith(".") and not UNFIT.match(summary), summary
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            about = option.help or ""
            assert about.endswith((".", "…")) and about[0].isupper(), about
            assert about.split()[0] in PLURALS or not UNFIT.match(about), about
    if any(parameter.name in ("model", "targets") for parameter in command.params) and name not in ("import", "verify"):
        assert text.endswith(f"Shipped models:\n  {', '.join(sorted(MODELS))}")


@pytest.mark.parametrize("name", ["check", "train"])
def test_options_of_a_long_help_are_in_groups(name: str) -> None:
    command, context = command_of(name)
    sections = re.split(r"^(?=\w[\w ]*:$)", command.get_help(context), flags=re.MULTILINE)[1:]
    assert not any(section.startswith("Options:") for section in sections)
    assert max(section.count("\n  -") for section in sections) <= 14


def test_opstage_alone_names_the_first_steps(opstage: Run) -> None:
    code, out, err = opstage()
    assert (code, out) == (2, "")
    assert re.findall(r"^  opstage ([\w-]+)", err, re.MULTILINE) == ["new", "check", "train", "--help"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "unknown command 'trian' (did you mean 'train'?) (see opstage --help)"),
        (["import_weights"], "unknown command 'import_weights' (did you mean 'import-weights'?) (see opstage --help)"),
        (["train", "mpl"], "the argument MODEL: unknown model 'mpl' (did you mean 'mlp'?); shipped are "),
        (["check", "resnt"], "unknown model 'resnt' (did you mean 'resnet'?); shipped are "),
    ],
)
def test_a_misspelled_name_suggests_the_nearest(opstage: Run, words: list[str], message: str) -> None:
    assert refusal(opstage(*words)).startswith(message)


def test_a_misspelled_option_suggests_the_nearest(opstage: Run) -> None:
    """In the words of the installed click."""
    message = refusal(opstage("check", "--memroy"))
    assert message.startswith("No such option") and "--memory" in message


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("tr", ["train"]),
        ("export", ["export", "export-weights"]),
        ("train m", ["mlp"]),
        ("check v", ["vae", "vit"]),
        ("import-weights res", ["resnet"]),
        ("train --backend comp", ["compiled"]),
        ("train --dtype float6", ["float64"]),
        ("check --optimizer ada", ["adagrad", "adam", "adamw", "adadelta"]),
        ("train --optimizer.name mo", ["momentum"]),
        ("train mlp --optimizer.name mu", ["muon"]),
        ("train --options.backend ea", ["eager"]),
        ("train --optimizer.cl", ["--optimizer.clip_norm"]),
        ("train --no-pro", ["--no-progress"]),
    ],
)
def test_a_shell_completes_names(words: str, expected: list[str]) -> None:
    *before, incomplete = words.split()
    found = ShellComplete(cli, {}, "opstage", "_OPSTAGE_COMPLETE").get_completions(before, incomplete)
    assert [item.value for item in found if item.type == "plain"] == expected


def test_a_shell_completes_every_model_and_optimizer() -> None:
    complete = ShellComplete(cli, {}, "opstage", "_OPSTAGE_COMPLETE").get_completions
    assert [item.value for item in complete(["train"], "")] == [*sorted(MODELS), ""]
    assert [item.value for item in complete(["check", "--optimizer"], "")] == [*SHIPPED]


def test_quiet_prints_nothing_but_errors(opstage: Run) -> None:
    assert opstage("new", "mine", "--quiet") == (0, "", "") and Path("mine.py").exists()
    assert refusal(opstage("new", "mine", "-q")) == "mine.py exists; choose another name"
