"""Machine code on disk, from the outside: other processes, folders that cannot be used, entries that are damaged."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import opstage

PROGRAM = """
import hashlib, logging, resource, sys, warnings
import numpy as np
import opstage
from opstage import Options

handler = logging.StreamHandler(sys.stdout)
for name in ("native.compiler", "native.kernel_cache", "codegen.cpu.kernels"):
    logging.getLogger(f"opstage.compiler.{name}").addHandler(handler)
    logging.getLogger(f"opstage.compiler.{name}").setLevel(logging.DEBUG)
limit = int(sys.argv[1]) if len(sys.argv) > 1 else 0
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

def program(ops, x, w):
    parts = []
    for f in (ops.sin, ops.cos, ops.tanh, ops.exp, ops.neg, ops.abs, ops.sigmoid, ops.softplus, ops.erf, ops.silu):
        parts.append(ops.reduce_sum(f(ops.matmul(x, w)), axis=(1,)))
        w = f(ops.matmul(w, w))
    return ops.stack(parts, axis=0)

rng = np.random.default_rng(0)
x, w = rng.normal(size=(30, 8)), rng.normal(size=(8, 8)) / 8
found = opstage.run(program, x, w, options=Options(backend="compiled", dtype="float64"))
expected = opstage.run(program, x, w, options=Options(dtype="float64", fast_kernels=False))
np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)
print("digest", hashlib.sha256(found.tobytes()).hexdigest())
"""

EAGER = """
import hashlib
import numpy as np
import opstage

x = np.linspace(-3, 3, 400).reshape(20, 20)
found = opstage.run(lambda ops, x: ops.softmax(ops.erf(x)), x)  # by loops of eager kernels
plain = opstage.run(lambda ops, x: ops.softmax(ops.erf(x)), x, options=opstage.Options(fast_kernels=False))
np.testing.assert_allclose(found, plain, rtol=1e-5, atol=1e-7)
print("digest", hashlib.sha256(found.tobytes()).hexdigest())
"""

pytestmark = pytest.mark.slow


def started(
    folder: Path, *arguments: str, program: str = PROGRAM, options: tuple[str, ...] = ()
) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "NUMBA_CACHE_DIR": str(folder),
        "PYTHONPATH": str(Path(opstage.__file__).parents[1]),
        "OPENBLAS_NUM_THREADS": "1",
    }
    return subprocess.Popen(
        [sys.executable, *options, "-c", program, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def said(process: subprocess.Popen[str]) -> tuple[str, list[str], str]:
    """The digest of the result, what was logged, and the warnings of a process that ended well."""
    out, error = process.communicate()
    assert process.returncode == 0, error
    *log, digest = out.splitlines()
    assert digest.startswith("digest ")
    return digest, log, error


def compiled(log: list[str]) -> int:
    return sum(line.startswith("compiling kernel") for line in log)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder that a first process has filled, and the digest of its result."""
    folder = tmp_path_factory.mktemp("kernels")
    digest, log, _ = said(started(folder))
    assert compiled(log) >= 8  # those that another process compiled are not in its log
    return folder, digest


def test_the_next_process_compiles_nothing(warm: tuple[Path, str]) -> None:
    folder, expected = warm
    digest, log, _ = said(started(folder))
    assert (digest, log) == (expected, [])


def test_the_process_that_helps_runs_nothing_of_the_current_folder(
    warm: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a part of the kernels, and imports what this process would, Python's own modules first."""
    (tmp_path / "current").mkdir()
    ran = tmp_path / "ran"
    for name in ("fractions", "json", "sitecustomize", "usercustomize", "llvmlite", "_strptime", "statistics"):
        text = f"open({str(ran)!r}, 'a').write({name!r})\nraise SystemExit(1)\n"
        (tmp_path / "current" / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path / "current")
    kernels = tmp_path / "kernels"
    # this process itself runs with -P, so only one that is started by it could look into the current folder
    digest, log, _ = said(started(kernels, options=("-P",)))
    assert digest == warm[1]
    assert not ran.exists()
    total = len(list(kernels.rglob("*.o")))
    assert total // 3 < compiled(log) < total  # the other one took its part


def test_processes_may_compile_into_one_folder_at_once(warm: tuple[Path, str], tmp_path: Path) -> None:
    processes = [started(tmp_path) for _ in range(3)]
    assert {said(process)[0] for process in processes} == {warm[1]}
    digest, log, _ = said(started(tmp_path))
    assert (digest, log) == (warm[1], [])
    assert not [path for path in tmp_path.rglob("*") if ".o" in path.name and not path.name.endswith(".o")]


@pytest.mark.parametrize("damage", ["emptied", "cut", "changed", "another"])
def test_damaged_kernels_are_made_anew(warm: tuple[Path, str], tmp_path: Path, damage: str) -> None:
    folder, expected = warm
    entries = {path: path.read_bytes() for path in folder.rglob("*.o")}
    assert len(entries) > 10
    another = min(entries)
    for path, kept in entries.items():
        changed = kept[:200] + bytes([kept[200] ^ 255]) + kept[201:]
        bad = {"emptied": b"", "cut": kept[: len(kept) // 2], "changed": changed, "another": entries[another]}
        path.write_bytes(bad[damage])
    try:
        digest, log, _ = said(started(folder))
        assert digest == expected
        assert sum("is damaged" in line for line in log) >= len(entries) // 2
        assert said(started(folder))[:2] == (expected, [])
    finally:
        for path, kept in entries.items():
            path.write_bytes(kept)


@pytest.mark.parametrize("damage", [b"", bytes(5000), b"no code"], ids=["emptied", "zeros", "text"])
def test_damaged_eager_kernels_are_made_anew(tmp_path: Path, damage: bytes) -> None:
    expected = said(started(tmp_path, program=EAGER))[0]
    entries = list(tmp_path.rglob("*.o"))
    assert entries
    for path in entries:
        path.write_bytes(damage)
    assert said(started(tmp_path, program=EAGER))[0] == expected
    assert said(started(tmp_path, program=EAGER))[0] == expected


def test_without_a_folder_code_stays_in_memory_and_a_warning_says_so(warm: tuple[Path, str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    digest, log, warnings = said(started(tmp_path / "file" / "below"))
    assert digest == warm[1] and compiled(log) > 10
    assert "compiled kernels cannot be stored on disk" in warnings


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="a superuser writes anywhere")
def test_a_folder_that_cannot_be_written_to_is_still_read(warm: tuple[Path, str]) -> None:
    folder, expected = warm
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        assert said(started(folder))[0] == expected
    finally:
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755)


@pytest.mark.parametrize("room", [1, 600, 3000])
def test_a_full_disk_is_no_obstacle(warm: tuple[Path, str], tmp_path: Path, room: int) -> None:
    """No file may grow beyond so many bytes; a system without this limit would say ENOSPC just so."""
    digest, log, _ = said(started(tmp_path, str(room)))
    assert digest == warm[1] and compiled(log) >= 8
    assert all(path.stat().st_size <= room for path in tmp_path.rglob("*.o"))
    assert said(started(tmp_path))[0] == warm[1]
