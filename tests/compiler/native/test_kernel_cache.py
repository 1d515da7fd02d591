"""Machine code on disk: whose folder is used, which files are read, and how many bytes are kept."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import opstage
from opstage import Options, UsageError
from opstage.compiler.native import kernel_cache

if not hasattr(os, "geteuid"):
    pytest.skip("a system without users of files", allow_module_level=True)

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser gives files away")
OTHER = 54321  # a user id that nobody has
CODE = bytes(range(256)) * 40


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "OPSTAGE_KERNEL_CACHE"):
        monkeypatch.delenv(name, raising=False)
    kernel_cache._cache_folder.cache_clear()
    monkeypatch.setattr(kernel_cache, "_written", {})
    yield
    kernel_cache._cache_folder.cache_clear()


def rights(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def leaf(base: Path) -> Path:
    return base / f"opstage-{kernel_cache.environment()[:16]}"


def chosen() -> Path:
    """The folder that is used; there must be one, and no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = kernel_cache.cache_folder()
    assert found is not None
    return found


def refused() -> str:
    """The warning with which no folder is used."""
    with pytest.warns(UserWarning, match=r"cannot be stored on disk.*Set NUMBA_CACHE_DIR to a folder") as caught:
        assert kernel_cache.cache_folder() is None
    return str(caught[0].message)


# Where ---------------------------------------------------------------------------------------------------------------


def test_the_folder_and_those_made_for_it_are_the_users_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "a" / "b"))
    before = os.umask(0)
    try:
        found = chosen()
        kernel_cache.write_code(found / "x.o", "key", CODE)
    finally:
        os.umask(before)
    assert found == leaf(tmp_path / "a" / "b")
    assert [rights(path) for path in (tmp_path / "a", tmp_path / "a" / "b", found)] == [0o700] * 3
    assert rights(found / "x.o") == 0o600


def test_a_folder_that_others_may_only_read_is_closed_to_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    leaf(tmp_path).mkdir()
    leaf(tmp_path).chmod(0o755)
    assert rights(chosen()) == 0o700


def give(path: Path) -> None:
    os.chown(path, OTHER, OTHER, follow_symlinks=False)


def link(path: Path, *, other: bool) -> None:
    target = path.with_name("target")
    target.mkdir(0o700)
    path.symlink_to(target)
    if other:
        give(path)


# what is done to the folder (True) or to the one above it (False), and what the warning says
PLANTED: dict[str, tuple[Callable[[Path], object], bool, str]] = {
    "folder of another user": (lambda p: (p.mkdir(0o700), give(p)), True, "belongs to another user"),
    "folder that all may write": (lambda p: (p.mkdir(), p.chmod(0o777)), True, "is writable by other users"),
    "folder that all may write, sticky": (lambda p: (p.mkdir(), p.chmod(0o1777)), True, "is writable by other users"),
    "folder that a group may write": (lambda p: (p.mkdir(), p.chmod(0o770)), True, "is writable by other users"),
    "link": (lambda p: link(p, other=False), True, "is a link"),
    "link of another user": (lambda p: link(p, other=True), True, "is a link"),
    "file": (lambda p: p.write_text(""), True, "Not a directory"),
    "base of another user": (lambda p: (p.mkdir(), give(p)), False, "belongs to another user"),
    "base of another user, sticky": (lambda p: (p.mkdir(), p.chmod(0o1777), give(p)), False, "belongs to another user"),
    "base that all may write": (lambda p: (p.mkdir(), p.chmod(0o777)), False, "is writable by other users"),
    "base that a group may write": (
        lambda p: (p.mkdir(), os.chown(p, -1, OTHER), p.chmod(0o775)),
        False,
        "is writable by other users",
    ),
    "base that is a link of another user": (lambda p: link(p, other=True), False, "is a link that belongs to another"),
    "base below one that all may write": (
        lambda p: (p.mkdir(), p.chmod(0o700), p.parent.chmod(0o777)),
        False,
        "is writable by other users",
    ),
    "base below one of another user": (lambda p: (p.mkdir(0o700), give(p.parent)), False, "belongs to another user"),
}


@AS_ROOT
@pytest.mark.parametrize("planted", PLANTED)
def test_what_another_user_could_have_written_is_not_used(
    planted: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plant, inside, expected = PLANTED[planted]
    base = tmp_path / "above" / "base"
    base.parent.mkdir(0o700)
    if inside:
        base.mkdir(0o700)
    plant(leaf(base) if inside else base)
    before = {path: path.lstat() for path in tmp_path.rglob("*")}
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(base))
    assert expected in refused()
    after = {path: path.lstat() for path in tmp_path.rglob("*")}
    assert {path: (s.st_mode, s.st_uid) for path, s in after.items()} == {
        path: (s.st_mode, s.st_uid) for path, s in before.items()
    }


# the one above may be shared, as /tmp is, and a link of one's own may be on the way
GOOD: dict[str, Callable[[Path], object]] = {
    "missing": lambda p: None,
    "one's own": lambda p: p.mkdir(0o755),
    "below a shared one that is sticky": lambda p: (p.parent.chmod(0o1777), p.mkdir(0o700)),
    "shared and sticky": lambda p: (p.mkdir(), p.chmod(0o1777)),
    "one's own link": lambda p: link(p, other=False),
}


@pytest.mark.parametrize("good", GOOD)
def test_what_only_this_user_could_have_written_is_used(
    good: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    base = tmp_path / "above" / "base"
    base.parent.mkdir(0o700)
    GOOD[good](base)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(base))
    found = chosen()
    assert found == leaf(base.resolve()) and rights(found) == 0o700
    kernel_cache.write_code(found / "x.o", "key", CODE)
    assert kernel_cache.read_code(found / "x.o", "key") == CODE


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"NUMBA_CACHE_DIR": "relative"}, "not an absolute path"),
        ({"NUMBA_CACHE_DIR": "~/x"}, "not an absolute path"),
        ({"HOME": "relative"}, "does not exist"),
        ({"HOME": "/nonexistent"}, "does not exist"),
        ({"HOME": ""}, "does not exist"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "relative"}, "does not exist"),
        ({"HOME": "~"}, "does not exist"),
    ],
    ids=str,
)
def test_nothing_is_written_below_the_current_folder_or_a_home_that_is_not_there(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kernel_cache, "_HERE", tmp_path / "file")  # a package that cannot be written to
    monkeypatch.chdir(tmp_path)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert expected in refused()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert not Path("/nonexistent").exists()


def test_without_home_it_is_the_one_of_the_password_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import pwd

    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kernel_cache, "_HERE", tmp_path / "file")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    home = pwd.getpwuid(os.getuid())
    monkeypatch.setattr(pwd, "getpwuid", lambda user: home.__class__([*home[:5], str(tmp_path), home[6]]))
    assert chosen() == leaf(tmp_path / ".cache")

    def nobody(user: int) -> object:
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert "the home folder '~' does not exist" in refused()
    assert not (tmp_path / "~").exists()


def test_a_relative_cache_of_the_user_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(kernel_cache, "_HERE", tmp_path / "file")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert chosen() == leaf(tmp_path / ".cache")


@AS_ROOT
def test_a_process_that_changes_its_user_changes_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    found = chosen()
    kernel_cache.write_code(found / "x.o", "key", CODE)
    os.seteuid(OTHER)
    try:
        assert kernel_cache.read_code(found / "x.o", "key") is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert kernel_cache.cache_folder() is None
    finally:
        os.seteuid(0)
    assert kernel_cache.cache_folder() == found


# Which files ---------------------------------------------------------------------------------------------------------

FILES: dict[str, Callable[[Path], object]] = {
    "a link": lambda p: (p.rename(p.with_name("y")), p.symlink_to(p.with_name("y"))),
    "one that all may write": lambda p: p.chmod(0o666),
    "one that a group may write": lambda p: p.chmod(0o620),
    "a pipe": lambda p: (p.unlink(), os.mkfifo(p)),
    "a folder": lambda p: (p.unlink(), p.mkdir()),
    "nothing": lambda p: p.unlink(),
    "cut": lambda p: p.write_bytes(p.read_bytes()[:-1]),
    "another's": lambda p: give(p),
    "a folder that all may write": lambda p: p.parent.chmod(0o777),
    "a folder of another user": lambda p: give(p.parent),
}


@pytest.mark.parametrize("bad", FILES)
def test_only_a_whole_file_of_ones_own_is_read(bad: str, tmp_path: Path) -> None:
    if bad in ("another's", "a folder of another user") and os.geteuid() != 0:
        pytest.skip("only the superuser gives files away")
    place = tmp_path / "kernels"
    place.mkdir(0o700)
    kernel_cache.write_code(place / "x.o", "key", CODE)
    assert kernel_cache.read_code(place / "x.o", "key") == CODE
    assert kernel_cache.read_code(place / "x.o", "another key") is None
    FILES[bad](place / "x.o")
    assert kernel_cache.read_code(place / "x.o", "key") is None
    place.chmod(0o700)
    os.chown(place, os.geteuid(), -1)
    if bad != "a folder":
        kernel_cache.write_code(place / "x.o", "key", CODE)
        assert kernel_cache.read_code(place / "x.o", "key") == CODE


def test_a_link_that_waits_under_the_temporary_name_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "kernels"
    place.mkdir(0o700)
    (tmp_path / "mine").write_text("mine")
    monkeypatch.setattr(kernel_cache.secrets, "token_hex", lambda count: "known")
    (place / "x.o.known").symlink_to(tmp_path / "mine")
    kernel_cache.write_code(place / "x.o", "key", CODE)
    assert (tmp_path / "mine").read_text() == "mine"
    assert kernel_cache.read_code(place / "x.o", "key") is None


# How many bytes ------------------------------------------------------------------------------------------------------


def total(base: Path) -> int:
    return sum(path.stat().st_size for path in base.rglob("*") if path.is_file())


def test_what_was_not_used_for_longest_is_removed_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entry = len(CODE) + 32
    monkeypatch.setenv("OPSTAGE_KERNEL_CACHE", str(10 * entry))
    place, older = tmp_path / "opstage-0123456789abcdef", tmp_path / "opstage-fedcba9876543210" / "loops"
    place.mkdir(0o700)
    older.mkdir(mode=0o700, parents=True)
    (older / "left.nbc").write_bytes(CODE)
    (older / "left.nbi").write_bytes(CODE)
    (tmp_path / "opstage-not-ours").mkdir()
    (tmp_path / "opstage-not-ours" / "x").write_bytes(CODE)
    for path in older.iterdir():
        os.utime(path, (1, 1))
    for i in range(8):
        kernel_cache.write_code(place / f"{i}.o", str(i), CODE)
        os.utime(place / f"{i}.o", (100 + i, 100 + i))
    assert kernel_cache.read_code(place / "0.o", "0") == CODE  # used just now
    kernel_cache.write_code(place / "8.o", "8", CODE)
    assert not list(older.iterdir())
    for i in range(9, 12):
        kernel_cache.write_code(place / f"{i}.o", str(i), CODE)
    assert total(place) <= 10 * entry
    left = {path.name for path in place.iterdir()}
    assert {"0.o", "8.o", "9.o", "10.o", "11.o"} <= left and "1.o" not in left
    assert (tmp_path / "opstage-not-ours" / "x").exists()


@pytest.mark.parametrize("nbytes", [0, 1, 31, 1 << 14])
def test_any_bound_holds(nbytes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OPSTAGE_KERNEL_CACHE", str(nbytes))
    place = tmp_path / "opstage-0123456789abcdef"
    place.mkdir(0o700)
    for i in range(5):
        kernel_cache.write_code(place / f"{i}.o", str(i), CODE)
        assert total(place) <= nbytes


def test_a_bound_of_nothing_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("OPSTAGE_KERNEL_CACHE", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel_cache.cache_folder() is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["-1", "1e6", "many", "1 parsec", "0.1B"])
def test_a_bound_that_is_no_number_is_an_error(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSTAGE_KERNEL_CACHE", text)
    with pytest.raises(UsageError, match=r"OPSTAGE_KERNEL_CACHE: .*(amount|unit)"):
        kernel_cache.cache_folder()


def test_the_bound_is_no_option_of_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPSTAGE_KERNEL_CACHE", "1000")
    assert Options.from_env() == Options()


def test_processes_that_write_and_remove_at_once(tmp_path: Path) -> None:
    place = tmp_path / "opstage-0123456789abcdef"
    place.mkdir(0o700)
    program = (
        "import sys; from pathlib import Path; from opstage.compiler.native import kernel_cache\n"
        "place, me = Path(sys.argv[1]), sys.argv[2]\n"
        "for i in range(150):\n"
        "    kernel_cache.write_code(place / f'{i % 40}.o', str(i % 40), b'%d' % (i % 40) * 2000)\n"
        "    found = kernel_cache.read_code(place / f'{(7 * i) % 40}.o', str((7 * i) % 40))\n"
        "    assert found in (None, b'%d' % ((7 * i) % 40) * 2000)\n"
    )
    env = {**os.environ, "OPSTAGE_KERNEL_CACHE": "40000", "PYTHONPATH": str(Path(opstage.__file__).parents[1])}
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(place), str(i)], env=env, stderr=subprocess.PIPE)
        for i in range(3)
    ]
    assert [(process.communicate()[1], process.returncode) for process in running] == [(b"", 0)] * 3
    assert 0 < total(place) <= 40000 + 3 * 40000 // 16
    assert all(path.suffix == ".o" for path in place.iterdir())


# From outside --------------------------------------------------------------------------------------------------------


@AS_ROOT
@pytest.mark.slow
def test_code_planted_by_another_user_is_not_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another user's own kernels, of a changed program, under the names that this user's process looks for."""
    caplog.set_level(logging.DEBUG)
    program = (
        "import numpy as np, opstage\n"
        "x = np.linspace(-1, 1, 9, dtype=np.float32)\n"
        "print(opstage.run(lambda ops, x: ops.exp(x), x, options=opstage.Options(backend='compiled')).tolist())\n"
    )
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    env = {**os.environ, "NUMBA_CACHE_DIR": str(shared), "PYTHONPATH": str(Path(opstage.__file__).parents[1])}

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)

    first = run()
    (place,) = shared.iterdir()
    for path in [place, *place.rglob("*")]:
        give(path)
        if path.is_file():
            path.write_bytes(b"planted")
    second = run()
    assert second.stdout == first.stdout
    assert "belongs to another user" in second.stderr
    assert all(path.read_bytes() == b"planted" for path in place.rglob("*") if path.is_file())
