"""The answers that `opstage check` keeps: given again while nothing has changed, never when anything has."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from opstage.cli.check import cache as cache
from opstage.cli.check import processes
from opstage.cli.check.cache import Cache
from opstage.cli.check.processes import check_each
from opstage.cli.check.request import Asked, Request
from opstage.interpreters.shape_check.formats.document import CheckOutcome

OWN = "def f(ops, x):\n    return ops.reshape(x, shape=(x.shape[0], {size}))\n"
RIGHT, WRONG = "3", "4"

Change = Callable[[Path], None]


def put(name: str, text: str) -> Change:
    """Write a file; the times of the old one stay, so that its contents alone tell."""

    def change(folder: Path) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        times = (path.stat().st_atime_ns, path.stat().st_mtime_ns) if path.exists() else (1_700_000_000, 1_700_000_000)
        path.write_text(text)
        os.utime(path, ns=times)

    return change


def case(before: dict[str, str], main: str, change: Change) -> tuple[dict[str, str], Change]:
    """A folder with `main.py`, in which `size` is right at first and wrong after the change."""
    return {"main.py": f"{main}\n{OWN.format(size='size')}", **before}, change


CHANGES: dict[str, tuple[dict[str, str], Change]] = {
    "itself": ({"main.py": OWN.format(size=RIGHT)}, put("main.py", OWN.format(size=WRONG))),
    "import": case({"near.py": "size = 3\n"}, "from near import size", put("near.py", "size = 4\n")),
    "import of an import": case(
        {"pack/__init__.py": "from .deep import size\n", "pack/deep.py": "size = 3\n"},
        "from pack import size",
        put("pack/deep.py", "size = 4\n"),
    ),
    "import that is forgotten": case(
        {"gone.py": "size = 3\n"},
        "import sys\nfrom gone import size\ndel sys.modules['gone']",
        put("gone.py", "size = 4\n"),
    ),
    "late import": case(
        {"late.py": "size = 3\n"},
        "def g(): from late import size as s; return s\nclass S(int): pass\nsize = g()",
        put("late.py", "size = 4\n"),
    ),
    "data": case(
        {"size.txt": "3"},
        "from pathlib import Path\nsize = int((Path(__file__).parent / 'size.txt').read_text())",
        put("size.txt", "4"),
    ),
    "file looked for": case(
        {}, "import os\nsize = 4 if os.path.exists(os.path.dirname(__file__) + '/flag') else 3", put("flag", "")
    ),
    "folder listed": case(
        {"many/a": "", "many/b": "", "many/c": ""},
        "import os\nsize = len(os.listdir(os.path.dirname(__file__) + '/many'))",
        put("many/d", ""),
    ),
    "module that was missing": case(
        {}, "try:\n    from extra import size\nexcept ImportError:\n    size = 3", put("extra.py", "size = 4\n")
    ),
    "package that was missing": case(
        {}, "try: from none import size\nexcept ImportError: size = 3", put("none/__init__.py", "size = 4\n")
    ),
}

NEVER = {
    "wrong": "def g(): pass\n",
    "raises": "raise ValueError\n",
    "writes": f"open(__file__ + '.txt', 'w').close()\n{OWN.format(size=RIGHT)}",
    "starts": f"import subprocess\nsubprocess.run(['true'])\n{OWN.format(size=RIGHT)}",
    "connects": f"import socket\nsocket.socket().close()\n{OWN.format(size=RIGHT)}",
    "changed": f"import os\nos.utime(__file__)\n{OWN.format(size=RIGHT)}",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The working directory; answers are kept beside it."""
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


@pytest.fixture(autouse=True)
def fresh(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The words of the files that are checked, and not told from before."""
    monkeypatch.chdir(folder)
    seen: list[str] = []
    check = processes._check_each

    def counted(requests: list[Request], cache: Cache) -> list[list[CheckOutcome]]:
        seen.extend(request.label for request in requests)
        return check(requests, cache)

    monkeypatch.setattr(processes, "_check_each", counted)
    return seen


def request(name: str, asked: Asked | None = None) -> Request:
    return Request(name, f"{name}/main.py", None, "f", asked or Asked(inputs=("x: B 3",)), 60.0, None)


def answers(names: list[str], asked: Asked | None = None) -> dict[str, int]:
    """The exit code of each."""
    each = check_each([request(name, asked) for name in names], Cache(Path.cwd().parent / "kept"))
    return {name: outcome.exit_code() for name, (outcome,) in zip(names, each)}


def test_a_change_is_seen_and_nothing_else_is_checked_again(folder: Path, fresh: list[str]) -> None:
    for name, (files, _) in CHANGES.items():
        for file, text in files.items():
            put(f"{name}/{file}", text)(folder)
    for name, text in NEVER.items():
        put(f"{name}/main.py", text)(folder)
    put("steady/main.py", OWN.format(size=RIGHT))(folder)
    names = [*CHANGES, "steady"]
    assert answers([*names, *NEVER]) == {**dict.fromkeys([*names, *NEVER], 0), "wrong": 2, "raises": 2}
    del fresh[:]
    assert set(answers([*names, *NEVER]).values()) == {0, 2}
    assert fresh == [*NEVER]
    for name, (_, change) in CHANGES.items():
        change(folder / name)
    del fresh[:]
    assert answers(names) == {**dict.fromkeys(CHANGES, 1), "steady": 0}
    assert fresh == [*CHANGES]
    del fresh[:]
    assert set(answers(names).values()) == {0, 1} and fresh == []  # errors are kept too


def test_an_answer_is_that_to_the_same_question(
    folder: Path, fresh: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = "import os\nprint('said')\nsize = int(os.environ.get('SIZE', 3))\n" + OWN.format(size="size")
    put("one/main.py", main)(folder)

    def answer(expected: int, asked: Asked | None = None) -> bool:
        """Whether it was checked anew."""
        del fresh[:]
        assert answers(["one"], asked) == {"one": expected}
        return bool(fresh)

    assert answer(0) and not answer(0)
    (outcome,) = check_each([request("one")], Cache(folder.parent / "kept"))[0]
    assert outcome.printed == "said\n" and outcome.ok and str(outcome.flops) == "0"
    assert answer(1, Asked(inputs=("x: B 5",)))
    assert answer(0, Asked(inputs=("x: B 3",), options={"dtype": "float64"}))
    assert not answer(0)
    with monkeypatch.context() as changed:
        changed.setenv("SIZE", "4")
        assert answer(1) and not answer(1)
    assert not answer(0)
    with monkeypatch.context() as changed:
        changed.setattr(cache, "__version__", "0.0.0")
        assert answer(0)
    kept = [path for path in (folder.parent / "kept").iterdir() if "ops/layout.py" in path.read_text()]
    assert len(kept) == 5  # Opstage's own modules are among what is read
    for path in kept:
        text = path.read_text()
        path.write_text(text[: len(text) // 2])
    assert answer(0) and not answer(0)
    for path in kept:
        path.unlink(missing_ok=True)
    assert answer(0)


def test_a_changed_module_of_opstage_is_seen(folder: Path, fresh: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    put("one/main.py", OWN.format(size=RIGHT))(folder)
    answers(["one"])
    (kept,) = (folder.parent / "kept").iterdir()
    text = kept.read_text()
    at = text.index("ops/layout.py") + len('ops/layout.py", "')
    kept.write_text(text[:at] + "1" + text[at:])  # as if it had had another size
    del fresh[:]
    assert answers(["one"]) == {"one": 0} and fresh == ["one"]


def test_old_answers_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "_MOST", 4)
    for i in range(6):
        (tmp_path / f"{i}.json").write_text("{}")
        os.utime(tmp_path / f"{i}.json", (i, i))
    Cache(tmp_path).trim()
    assert sorted(path.name for path in tmp_path.glob("*.json")) == ["4.json", "5.json"]
