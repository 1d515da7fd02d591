"""The pages of the API: every public name is on one of them, and docstrings come out as they were meant."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import opstage
from tests.docs.blocks import run_python

ROOT = Path(__file__).parents[2]
MORE = re.findall(r"^::: (opstage\.\S+)$", (ROOT / "docs" / "api" / "more.md").read_text(), re.MULTILINE)
"""What is public in modules that the package does not name."""

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))


@pytest.fixture(scope="module")
def extension() -> Any:
    """The extension, without griffe, which only the extra `docs` installs."""
    griffe = ModuleType("griffe")
    griffe.Extension = object  # type: ignore[attr-defined]
    griffe.Object = SimpleNamespace  # type: ignore[attr-defined]
    known = sys.modules.setdefault("griffe", griffe)
    spec = importlib.util.spec_from_file_location("api_text", ROOT / "docs" / "api_text.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if known is griffe:
        del sys.modules["griffe"]
    return module


def test_every_public_name_is_on_a_page_once() -> None:
    named = [name for page in PAGES for name in re.findall(r"^::: opstage\.(\w+)$", page.read_text(), re.MULTILINE)]
    assert sorted(named) == sorted(opstage.__all__), "name it on a page of docs/api, as in `::: opstage.fit`"


def public() -> set[str]:
    """Every public name that is no module: those of the package, of its modules, and the methods of `Ops`."""
    found = {f"opstage.{name}" for name in opstage.__all__ if not isinstance(getattr(opstage, name), ModuleType)}
    for name in {*opstage.__all__} - {name.removeprefix("opstage.") for name in found}:
        module = getattr(opstage, name)
        for member in module.__all__:
            if not isinstance(getattr(module, member), ModuleType):
                found.add(f"opstage.{name}.{member}")
    found |= set(MORE)
    methods = [name for name, method in inspect.getmembers(opstage.Ops) if not name.startswith("_") and method.__doc__]
    return found | {f"opstage.Ops.{name}" for name in methods}


def test_every_public_name_has_an_example(extension: Any) -> None:
    """In docs/api/examples; `python -m tests.docs.session --write` fills in what they answer."""
    examples = set(extension.examples())
    assert not public() - examples
    assert examples - public() == {"opstage.optim.clip", "opstage.optim.schedule"}


BENEATH = {
    "opstage.onnx.InternalError",
    "opstage.onnx.source.write_source",
    "opstage.onnx.trainable.Config",
    "opstage.onnx.trainable.trainable",
    "opstage.ops.splitmix.splitmix64",
    "opstage.safetensors_files.encode",
    "opstage.torch.trainable.Config",
    "opstage.torch.trainable.trainable",
    "opstage.training.fit.fit",
    "opstage.interop.weights.read_named",
    "opstage.interop.weights.read_weights",
    "opstage.interop.weights.write_named",
    "opstage.interop.weights.write_weights",
}
"""What the guide uses to show what stands beneath a command or an op, and nobody needs to call."""


def test_what_the_guide_imports_is_on_a_page() -> None:
    known = {id(at(name)) for name in public() | BENEATH if not name.startswith("opstage.torch")}
    for page in sorted((ROOT / "docs" / "guide").glob("*.md")):
        for module, names in re.findall(r"^from (opstage[\w.]*) import ([\w, ]+)$", page.read_text(), re.MULTILINE):
            for name in names.split(","):
                path = f"{module}.{name.strip().partition(' as ')[0]}"
                if path in BENEATH or path.startswith("opstage.models."):
                    continue
                found = at(path)
                assert isinstance(found, ModuleType) or id(found) in known, f"{page.name} imports {path}"


def at(path: str) -> Any:
    """What stands at a dotted path: a module, or what one holds."""
    module, _, name = path.rpartition(".")
    if not module:
        return opstage
    try:
        return getattr(importlib.import_module(module), name)
    except (ModuleNotFoundError, AttributeError):
        return importlib.import_module(path) if importlib.util.find_spec(module) else getattr(at(module), name)


def test_examples_answer_as_is_written() -> None:
    run_python("-W", "ignore", "-m", "tests.docs.session", cwd=ROOT, path=[ROOT])


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text()
    assert all(f"api/{page.name}" in navigation for page in PAGES)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2*B*T and x_i of `2*B*T` <R>", r"2\*B\*T and x\_i of `2*B*T` &lt;R>"),
        ("A sum.\n\nx    the rows,\n     all\ny    1*2*3", "A sum.\n\n- `x`: the rows,\n  all\n- `y`: 1\\*2\\*3"),
        ("x    not a table\nbecause of this", "x    not a table\nbecause of this"),
        (
            "Raises:\n    ShapeError: x_i of\n        another shape.\n    OSError: no file.",
            "[Raises][causes]:\n\n- [`ShapeError`][opstage.ShapeError]: x\\_i of another shape.\n- `OSError`: no file.",
        ),
        ("ends here.  Two spaces", "- `ends here.`: Two spaces"),
    ],
)
def test_docstrings_come_out_as_they_were_meant(extension: Any, text: str, expected: str) -> None:
    assert extension.markdown(text) == expected


def test_pictures_are_there_and_small() -> None:
    """`make pictures` writes them."""
    named = re.findall(r"!\[[^\]]+\]\((pictures/[^)]+)\)", (ROOT / "docs" / "index.md").read_text())
    assert len(named) == 3
    assert all((ROOT / "docs" / name).stat().st_size < 200_000 for name in named)
