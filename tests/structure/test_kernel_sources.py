"""What decides the machine code of kernels is in the key under which it is kept on disk."""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import opstage
from opstage.compiler.native import kernel_cache
from opstage.compiler.native.kernel_cache import PACKAGE, SOURCES, compiled_sources
from opstage.ops.catalogue import FAMILIES

FILES = sorted(
    path.relative_to(PACKAGE)
    for name in SOURCES
    for path in ([PACKAGE / name] if name.endswith(".py") else (PACKAGE / name).glob("*.py"))
)

# What these give is data of a graph or a plan: it decides the text of a kernel, which is in its key, or its arguments.
GIVE_NO_CODE = {
    "distributed/compiled_collectives.py",
    "threads.py",
    "transforms/base_program.py",
    "transforms/cond.py",
    "transforms/control_flow.py",
    "transforms/while_loop.py",
    "interpreters/eager_cpu/interpreter.py",
    "interpreters/eager_cpu/memory.py",
    "interpreters/graph/graph.py",
    "interpreters/graph/rank_lowering.py",
    "interpreters/graph/passes/pipeline.py",
    "transforms/interpreter.py",
    "transforms/scan.py",
    "transforms/tracer.py",
    "ops/readable_amounts.py",
    "ops/array_conversion.py",
    "ops/body.py",
    "ops/dispatch.py",
    "ops/dims/__init__.py",
    "ops/errors.py",
    "ops/primitive.py",
    "ops/trees.py",
    "ops/static_arguments.py",
    "ops/types.py",
    "options.py",
    "ops/catalogue.py",
    *(f"ops/{family}.py" for family in FAMILIES),  # which ops there are; what they become is the tables'
}


def imported(path: Path) -> Iterator[Path]:
    """The modules of the package that a file imports at run time, relative to the package."""
    package = "opstage." + ".".join(path.parent.parts)
    tree = ast.parse((PACKAGE / path).read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.level or (node.module or "").startswith("opstage")):
            name = importlib.util.resolve_name("." * node.level + (node.module or ""), package.rstrip("."))
            for alias in node.names:
                yield from filter(None, [module(f"{name}.{alias.name}") or module(name)])
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            text = node.args[0]
            if isinstance(text, ast.Constant) and str(text.value).startswith("opstage."):
                yield from filter(None, [module(str(text.value))])


def module(name: str) -> Path | None:
    place = PACKAGE.parent.joinpath(*name.split("."))
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file():
            return path.relative_to(PACKAGE)
    return None


def test_what_compiled_files_import_is_in_the_key_or_gives_no_code() -> None:
    covered = set(FILES)
    found = {other for path in FILES for other in imported(path)}
    assert found & covered  # the search finds something
    assert {path.as_posix() for path in found - covered} <= GIVE_NO_CODE


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("copy") / "opstage"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_change_in_any_of_them_changes_the_key(copied: Path, path: Path) -> None:
    text = (copied / path).read_text()
    seen = {compiled_sources(copied)}
    definitions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, (ast.FunctionDef, ast.Lambda))]
    lines = text.split("\n")
    try:
        for node in definitions[:40] or [None]:
            at = (node.lineno - 1) if node is not None else 0
            changed = [*lines[:at], lines[at] + " ", *lines[at + 1 :]]
            (copied / path).write_text("\n".join(changed))
            seen.add(compiled_sources(copied))
        assert len(seen) == 1 + len({node.lineno if node is not None else 0 for node in definitions[:40] or [None]})
    finally:
        (copied / path).write_text(text)


def test_a_file_that_comes_or_goes_or_is_renamed_changes_the_key(copied: Path) -> None:
    seen = [compiled_sources(copied)]
    extra = copied / "compiler/native/zzz.py"
    extra.write_text("")
    seen.append(compiled_sources(copied))
    extra = extra.rename(extra.with_name("yyy.py"))
    seen.append(compiled_sources(copied))
    extra.unlink()
    assert len(set(seen)) == 3 and compiled_sources(copied) == seen[0] == compiled_sources()


@pytest.mark.parametrize("gone", ["ops/splitmix.py", "compiler/scalar.py"])
def test_without_sources_there_is_no_key(copied: Path, gone: str) -> None:
    (copied / gone).rename(copied / "aside")
    try:
        assert compiled_sources(copied) == ""
    finally:
        (copied / "aside").rename(copied / gone)


# What else is in it ---------------------------------------------------------------------------------------------------


def key_with(**changes: str) -> str:
    code = "from opstage.compiler.native.kernel_cache import environment; print(environment())"
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **changes}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("setting", "counts"),
    [
        ("NUMBA_OPT=1", True),
        ("NUMBA_CPU_NAME=generic", True),
        ("NUMBA_LOOP_VECTORIZE=0", True),
        ("NUMBA_UNHEARD_OF=1", True),
        ("NUMBA_CACHE_DIR=/tmp/elsewhere", False),
        ("NUMBA_NUM_THREADS=1", False),
        ("NUMBA_ENABLE_CUDASIM=1", False),
        ("OMP_NUM_THREADS=1", False),
    ],
)
def test_settings_that_change_code_change_the_key(setting: str, counts: bool) -> None:
    settings = kernel_cache.numba_settings(dict([setting.split("=")]))
    assert bool(settings) is counts


def test_a_settings_file_of_numba_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    before = kernel_cache.numba_settings({})
    (tmp_path / ".numba_config.yaml").write_text("opt: 1\n")
    assert kernel_cache.numba_settings({}) != before


def test_the_versions_that_would_be_imported_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import numpy

    def key() -> str:
        kernel_cache.environment.cache_clear()
        return kernel_cache.environment()

    try:
        seen = [key()]
        with monkeypatch.context() as patch:
            patch.setattr(opstage, "__version__", "0.0.0")
            seen.append(key())
        with monkeypatch.context() as patch:
            patch.setattr(numpy, "__version__", "0.0.0")
            seen.append(key())
        with monkeypatch.context() as patch:
            patch.setattr(kernel_cache, "processor", lambda: ("linux", "x86_64", "another"))
            seen.append(key())
        assert key() == seen[0]
    finally:
        kernel_cache.environment.cache_clear()
    for name in ("numba", "llvmlite"):  # one that lies before the installed one on the path
        (tmp_path / name / name).mkdir(parents=True)
        (tmp_path / name / name / "__init__.py").write_text("")
        (tmp_path / name / name / "_version.py").write_text("__version__ = '99'\n")
        seen.append(key_with(PYTHONPATH=os.pathsep.join([str(tmp_path / name), str(PACKAGE.parent)])))
    assert len(set(seen)) == len(seen)


def test_every_process_finds_the_same_key() -> None:
    assert key_with() == key_with(PYTHONHASHSEED="7") == kernel_cache.environment()


# From outside ---------------------------------------------------------------------------------------------------------

PROGRAM = """
import numpy as np, opstage
x = np.arange(1.0, 33.0, dtype=np.float32) / 32
compiled = opstage.Options(backend="compiled")
print(float(opstage.run(lambda ops, x: ops.silu(x), x).sum()))
print(float(opstage.run(lambda ops, x: ops.pow(x, exponent=3.7), x, options=compiled).sum()))
print(float(opstage.run(lambda ops, x: ops.rand_uniform(shape=(64,)), x, options=compiled).sum()))
print(float(opstage.run(lambda ops, x: ops.exp(x), x, options=compiled).sum()))
"""

# a definition that is compiled into others, another one in its place, and the lines of the output that change
CHANGES = [
    ("compiler/codegen/cpu/math_functions.py", ("return x**c", "return x**c + c"), {1}),
    ("interpreters/graph/cpu/kernel_library.py", ("2.0**-24", "2.0**-23"), {2}),
    ("compiler/scalar.py", ("word(40)", "word(41)"), {2}),
    ("compiler/codegen/cpu/math_functions.py", ("5.0000001201e-1", "5.1e-1"), {0, 3}),
    ("compiler/scalar.py", ('x·sigmoid(x)."""\n    one = real(1)', '"""\n    one = real(2)'), {0}),
]


@pytest.mark.slow
def test_changed_code_runs_at_once(copied: Path, tmp_path: Path) -> None:
    """A definition in another module than the function that is compiled, which is what numba itself does not notice."""

    def run() -> list[str]:
        env = {**os.environ, "PYTHONPATH": str(copied.parent), "NUMBA_CACHE_DIR": str(tmp_path)}
        env["PYTHONDONTWRITEBYTECODE"] = "1"
        done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    before = run()
    assert run() == before
    for path, (old, new), lines in CHANGES:
        text = (copied / path).read_text()
        assert text.count(old) == 1
        (copied / path).write_text(text.replace(old, new))
        try:
            after = run()
        finally:
            (copied / path).write_text(text)
        assert {i for i, (a, b) in enumerate(zip(before, after)) if a != b} == lines, path
    assert run() == before
