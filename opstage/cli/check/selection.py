"""Select what to check and report: a project's settings, targets on the command line, files of folders, rules.

A comment `# opstage: ignore[rule]` suppresses the findings of its line, errors too; an unused comment is reported."""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from glob import glob, has_magic
from pathlib import Path
from typing import Any

from ...config import Layer, merge, read_toml
from ...files import require_file
from ...interpreters.shape_check.finding import RANGE_RULES, Finding
from ...interpreters.shape_check.formats.document import CheckOutcome
from ...interpreters.shape_check.rules import RULES, UNDECIDED, UNUSED_SUPPRESSION
from ...models import MODELS
from ...models.model import MAKE
from ...ops.errors import SourceLine, UsageError, nearest
from ...options import Options
from ...runs.directory import CONFIG, SOURCE
from .request import read_seconds

# Targets --------------------------------------------------------------------------------------------------------------

_MODULE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class CheckTarget:
    """A shipped model, or a user's file or module with one function, or None for all that declare shapes."""

    word: str
    model: str | None = None
    file: Path | None = None
    module: str | None = None
    function: str | None = None


def read_target(word: str) -> CheckTarget:
    """Parse `cnn`, `my_model.py`, `my_model.py:loss` or `package.module:loss`. Raises UsageError."""
    if word in MODELS:
        return CheckTarget(word, model=word)
    place, colon, function = word.rpartition(":")
    if not colon or "/" in function or "\\" in function:
        place, function = word, ""
    elif not function:
        raise UsageError(f"{word}: expected the name of a function after the colon")
    named = function or None
    if place.endswith((".onnx", ".pt2")):
        require_file(place)
        return CheckTarget(word, model=word)
    if place.endswith(".py") or Path(place).is_file():
        require_file(place)
        return CheckTarget(word, file=Path(place), function=named)
    if named is not None and _MODULE.fullmatch(place):
        if Path(f"{place}.py").is_file():
            return CheckTarget(word, file=Path(f"{place}.py"), function=named)
        return CheckTarget(word, module=place, function=named)
    hint = nearest(word, MODELS)
    if not hint and Path(f"{word}.py").is_file():
        hint = f" (did you mean {f'{word}.py'!r}?)"
    raise UsageError(
        f"unknown model {word!r}{hint}; shipped are {', '.join(sorted(MODELS))}, and a program of your own is named by "
        "its file, as in my_model.py:loss"
    )


def may_declare(file: Path) -> bool:
    """Whether `file` has something to check without given shapes, found without running it: a function with a decorator
    named shapes, a model's `make` or a value `Model(…)`.

    pytest's mark of that name does not count, since pytest checks tests. A file that cannot be read, or that mentions
    Opstage but cannot be parsed, counts, since importing it reports the error.
    """
    try:
        text = file.read_bytes()
    except OSError:
        return True
    named = b"opstage" in text
    try:
        tree = ast.parse(text)
    except (ValueError, SyntaxError, RecursionError):
        return named
    return any(map(_declares, ast.walk(tree))) or (named and any(map(_is_model, tree.body)))


def _declares(node: ast.AST) -> bool:
    for decorator in getattr(node, "decorator_list", ()):
        words = _dotted_name(decorator.func if isinstance(decorator, ast.Call) else decorator)
        if words[-1:] == ["shapes"] and "mark" not in words:
            return True
    return False


def _is_model(node: ast.stmt) -> bool:
    """Whether a statement defines something that `list_models` would find."""
    if isinstance(node, ast.FunctionDef):
        return node.name == MAKE and len(node.args.args) <= 1
    value = getattr(node, "value", None) if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
    return isinstance(value, ast.Call) and _dotted_name(value.func)[-1:] == ["Model"]


def _dotted_name(node: ast.AST) -> list[str]:
    """Split `pytest.mark.shapes` into its parts; empty for any other expression."""
    if isinstance(node, ast.Name):
        return [node.id]
    return [*_dotted_name(node.value), node.attr] if isinstance(node, ast.Attribute) else []


# Files of folders and patterns ----------------------------------------------------------------------------------------

PASSED_OVER = ("__pycache__", "node_modules", "site-packages", "venv", "build", "dist")
"""Folders that are skipped because they hold no user code, as are those with a name that begins with a dot."""


def matches(path: Path, pattern: str, root: Path) -> bool:
    """Whether `pattern`, relative to `root`, matches a file or a folder above it; without a slash it matches at any
    depth.

    `*` matches anything within a name, `**` any number of folders.
    """
    try:
        parts = Path(os.path.abspath(path)).relative_to(os.path.abspath(root)).parts
    except ValueError:
        parts = Path(os.path.abspath(path)).parts[1:]
    pattern = pattern.removeprefix("./").rstrip("/")
    expression = _expression(pattern)
    if "/" not in pattern and any(expression.fullmatch(part) for part in parts):
        return True
    return any(expression.fullmatch("/".join(parts[: i + 1])) for i in range(len(parts)))


@cache
def _expression(pattern: str) -> re.Pattern[str]:
    tokens = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile(
        "".join(tokens.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*\*|\*|\?)", pattern) if part)
    )


def is_many(word: str) -> bool:
    """Whether a word is a folder or a pattern."""
    return os.path.isdir(word) or (has_magic(word) and not os.path.exists(word) and ":" not in word)


def files_in(word: str, exclude: Sequence[str], root: Path) -> Iterator[Path]:
    """Return the Python files of a folder, or those that match a pattern, in order, without excluded ones.

    Raises UsageError for a pattern that matches nothing.
    """
    if not os.path.isdir(word):
        matching = sorted(glob(word, recursive=True))
        if not matching:
            raise UsageError(f"{word}: matches no file or folder")
        for found in matching:
            if os.path.isdir(found):
                yield from files_in(found, exclude, root)
            elif found.endswith(".py") and _is_own(Path(found), exclude, root):
                yield Path(found)
        return
    for folder, folders, names in os.walk(word):
        here = Path(folder)
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".") and name not in PASSED_OVER and _is_own(here / name, exclude, root)
        )
        for name in sorted(names):
            if name.endswith(".py") and excluded_by(here / name, exclude, root) is None:
                yield here / name


def _is_own(path: Path, exclude: Sequence[str], root: Path) -> bool:
    """Whether a file or folder is neither excluded nor the copy of a model's files that a run keeps."""
    copied = any(folder.name == SOURCE and (folder.parent / CONFIG).exists() for folder in (path, *path.parents))
    return not copied and excluded_by(path, exclude, root) is None


def excluded_by(path: Path, exclude: Sequence[str], root: Path) -> str | None:
    """Return the first pattern of `exclude` that matches a file or a folder above it, or None."""
    return next((pattern for pattern in exclude if matches(path, pattern, root)), None)


def with_programs(files: Iterator[Path]) -> list[Path]:
    """Return the files with a function that declares its shapes, and model files, found without running anything."""
    return [file for file in files if may_declare(file)]


_COMMENT = re.compile(r"#\s*opstage:\s*ignore(?:\[([^\]]*)\])?")


@dataclass
class _Comment:
    """A comment that suppresses rules on its line, or all of them if it names none."""

    rules: tuple[str, ...]
    source: SourceLine
    used: set[str]

    def takes(self, rule: str) -> bool:
        if self.rules and rule not in self.rules:
            return False
        self.used.add(rule)
        return True


def selected(outcomes: Sequence[CheckOutcome], project: Project, whole: Sequence[str | None]) -> list[CheckOutcome]:
    """Return the outcomes with the selected findings. `whole` has for each outcome the file if it was checked
    completely, so that unused comments in it are reported; None if only one function was checked."""
    comments: dict[str, dict[int, _Comment]] = {}

    def comments_of(file: str) -> dict[int, _Comment]:
        if file not in comments:
            comments[file] = _comments(file)
        return comments[file]

    def stays(rule: str, severity: str, source: SourceLine | None, own: str | None) -> bool:
        always = severity == "error" and rule != UNDECIDED and rule not in RANGE_RULES  # errors if strict alone
        comment = None if source is None else comments_of(source.file).get(source.line)
        taken = comment is not None and comment.takes(rule)  # a comment has a use for a rule that is ignored today
        return not taken and (always or project.counts(rule, own if source is None else source.file))

    kept = []
    for outcome, own in zip(outcomes, whole):
        findings = [
            (finding, stays(finding.rule, finding.severity, finding.source, own)) for finding in outcome.findings
        ]
        conditions = [(condition, stays(UNDECIDED, "note", condition.source, own)) for condition in outcome.conditions]
        hidden = [finding.severity for finding, stay in findings if not stay]
        hidden += ["note" for _, stay in conditions if not stay]
        kept.append(
            replace(
                outcome,
                findings=tuple([finding for finding, stay in findings if stay]),
                conditions=tuple([condition for condition, stay in conditions if stay]),
                suppressed=tuple(hidden),
            )
        )
    unusable = {own for outcome, own in zip(outcomes, whole) if outcome.unusable is not None}
    for file in dict.fromkeys(own for own in whole if own is not None and own not in unusable):
        at = [*whole].index(file)
        odd = [finding for comment in comments_of(file).values() for finding in _unused(comment, project)]
        kept[at] = replace(kept[at], findings=(*kept[at].findings, *odd))
    return kept


def _comments(file: str) -> dict[int, _Comment]:
    """Return the comments of a file by line; none if it cannot be read."""
    try:
        text = Path(file).read_bytes()
        if b"opstage:" not in text:
            return {}
        tokens = [*tokenize.tokenize(io.BytesIO(text).readline)]
    except (OSError, SyntaxError, ValueError, tokenize.TokenError):
        return {}
    found = {}
    for token in tokens:
        match = _COMMENT.search(token.string) if token.type == tokenize.COMMENT else None
        if match:
            rules = tuple([rule for rule in re.split(r"[,\s]+", match[1] or "") if rule])
            line, column = token.start
            source = SourceLine(file, line, column + match.start() + 1, column + match.end() + 1)
            found[line] = _Comment(rules, source, set())
    return found


def _unused(comment: _Comment, project: Project) -> Iterator[Finding]:
    """Report unknown rules in a comment, and rules without a finding on its line."""
    if not project.counts(UNUSED_SUPPRESSION, comment.source.file):
        return
    for rule in comment.rules:
        if rule not in RULES:
            reason = f"there is no rule {rule!r}{nearest(rule, RULES)}"
            yield _finding(comment, reason, "opstage check --rules lists them")
        elif rule not in comment.used and project.counts(rule, comment.source.file):
            yield _finding(comment, f"this line has no finding of {rule}", "take the comment out")
    if not comment.rules and not comment.used and project.check.select is None:
        yield _finding(comment, "this line has no finding", "take the comment out")


def _finding(comment: _Comment, reason: str, fix: str) -> Finding:
    return Finding("program", reason, source=comment.source, rule=UNUSED_SUPPRESSION, severity="warning", fix=fix)


# The settings of a project: `opstage.toml`, or `[tool.opstage]` in `pyproject.toml` -----------------------------------


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """[check]: what is checked if nothing is named, and which findings count."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    """Files and folders that are skipped in folders."""
    select: tuple[str, ...] | None = None
    """Rules by name; None: all."""
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rules by a pattern of files."""
    strict: bool = False
    warnings_as_errors: bool = False
    time_limit: str | float | None = None

    def __post_init__(self) -> None:
        for name in ("select", "ignore"):
            require_rules(getattr(self, name) or (), f"{name}: ")
        for pattern, rules in self.per_file_ignores.items():
            require_rules(rules, f"per-file-ignores {pattern!r}: ")
        if self.time_limit is not None:
            object.__setattr__(self, "time_limit", read_seconds(str(self.time_limit)))


@dataclass(frozen=True)
class Project:
    """The settings that a project's file has, and the options that it sets.

    root    the folder of the file, the working directory if there is none
    """

    root: Path
    check: CheckSettings = field(default_factory=CheckSettings)
    options: Layer = field(default_factory=lambda: Layer({}, {}))

    def counts(self, rule: str, file: str | None) -> bool:
        """Return whether a warning or note of a rule, at a line of a file, is selected."""
        check = self.check
        if rule in check.ignore or (check.select is not None and rule not in check.select):
            return False
        ignored = check.per_file_ignores.items() if file is not None else ()
        return not any(rule in rules and matches(Path(str(file)), pattern, self.root) for pattern, rules in ignored)


def find_project(start: Path) -> Project:
    """Return the settings for a folder. Raises UsageError, with file and key, for settings that cannot be read.

    The nearest file above the working directory applies; in one folder `opstage.toml` has precedence. A pyproject.toml
    without that table is skipped. Flags override all settings. Paths are relative to the file's folder.

        [tool.opstage.check]            # in opstage.toml: [check]
        include = ["models", "train/*.py"]
        exclude = ["models/old"]
        select = ["shape", "dtype"]     # or ignore
        strict = true
        per-file-ignores = { "models/legacy_*.py" = ["unused-input"] }

        [tool.opstage.options]          # in opstage.toml: [options]
        dtype = "float64"
    """
    for folder in (start, *start.parents):
        for name, table in (("opstage.toml", ""), ("pyproject.toml", "tool.opstage.")):
            path = folder / name
            if path.is_file():
                layer = read_toml(os.path.relpath(path), {f"{table}check.per-file-ignores"}, largest=1 << 20)
                given = {key: value for key, value in layer.values.items() if key.startswith(table)}
                if given or not table:
                    names = {key: key.removeprefix(table).replace("-", "_") for key in given}
                    return _project(
                        folder,
                        {names[key]: value for key, value in given.items()},
                        {names[key]: layer.origins[key] for key in given},
                    )
    return Project(start)


def _project(root: Path, values: Mapping[str, Any], origins: Mapping[str, str]) -> Project:
    merged = merge({"check": CheckSettings, "options": Options}, [Layer(values, origins)])
    options = {path: value for path, value in values.items() if path.startswith("options.")}
    return Project(root, merged.sections["check"], Layer(options, origins))


def require_rules(names: Sequence[str], where: str = "") -> None:
    """Raise UsageError for a name that is not a rule."""
    for name in names:
        if name not in RULES:
            raise UsageError(f"{where}unknown rule {name!r}{nearest(name, RULES)}; opstage check --rules lists them")
