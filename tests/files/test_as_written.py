"""Whether a module that was imported is what its file says now: each change is seen, and what runs changes is none."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opstage.source_files import is_as_written, load_file

TEXT = """
import enum
from abc import ABC
from dataclasses import dataclass, field
from functools import lru_cache, wraps
from typing import NamedTuple

WIDTH = 8
RATE: float = 0.5
SIZES = [1, 2, (3, 4)]
NAMES = {"a": 1, "b": [2]}
KINDS = {"x", "y"}
EMPTY: dict = {}
UNUSED: dict = {}
COUNT = 0
SEEN = [0]
TABLE = {"n": 1}
EITHER = 1
if WIDTH > 100:
    EITHER = 2
SEEN.append(1)

@dataclass
class Config:
    width: int = 16
    sizes: tuple = (1, 2)
    deep: int = field(default=3)
    names: list = field(default_factory=list)

@dataclass
class Deeper(Config):
    deep = 6

@dataclass(slots=True)
class Slim:
    width: int = 16

@dataclass
class Normal:
    width: int = 4
    def __post_init__(self):
        self.width = 2 * self.width

class Plain(ABC):
    scale = 2.0
    total = 0
    class Inner:
        depth = 7
    def of(self, x, p=0.25, *, train=True):
        Plain.total += 1
        return x
    @staticmethod
    def static(p=1): return p
    @property
    def twice(self): return 2 * self.scale

class Other:
    scale = 4.0

class Colour(enum.Enum):
    RED = 1

class Pair(NamedTuple):
    a: int = 1

MADE = Config(24, deep=5)
NORMAL = Normal(width=6)
PAIR = Pair(2)
NESTED = [Config(width=32)]

def register(f):
    EMPTY[f.__name__] = f
    return f

def doubled(f):
    @wraps(f)
    def wrapper(*args, times=2):
        return f(*args)
    return wrapper

@register
def loss(x, rate=0.1):
    global COUNT
    COUNT += 1
    TABLE["n"] += 1
    return x

@doubled
def wrapped(x=1):
    return x

@lru_cache
def cached(x):
    return x

for i in range(3):
    pass
loss(1)
Plain().of(1)
"""
CHANGES = [
    ("WIDTH = 8", "WIDTH = 8; DEPTH = 3"),
    ("WIDTH = 8", "WIDTH = 8.0"),
    ("0.5", "0.25"),
    ("(3, 4)", "(3, 5)"),
    ('"b": [2]', '"c": [2]'),
    ("SEEN = [0]", "SEEN = [5]"),
    ("COUNT = 0", "COUNT = 7"),
    ("default=3", "default=4"),
    ("depth = 7", "depth = 8"),
    ("RED = 1", "RED = 2"),
    ("p=0.25", "p=0.5"),
    ("static(p=1)", "static(p=2)"),
    ("Config(24, deep=5)", "Config(24, deep=6)"),
]
"""What only the code shows that the module was made from."""
REPLACED = [
    ("2 * self.scale", "3 * self.scale"),
    ("return f(*args)", "return f(*args, *args)"),
    ("Plain.total += 1", "Plain.total += 2"),
]
"""What the functions of the module show too."""


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    before = {*sys.modules}
    (tmp_path / "written_text.py").write_text(TEXT)
    yield tmp_path / "written_text.py"
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_a_module_that_has_run_is_as_written(path: Path) -> None:
    module = load_file(path)
    assert (module.COUNT, module.TABLE["n"], len(module.SEEN), module.NORMAL.width) == (1, 2, 2, 12)
    assert is_as_written(module, TEXT.encode())


@pytest.mark.parametrize("how", ["from text", "from Python's cache", "of unknown code"])
@pytest.mark.parametrize(("before", "after"), [*CHANGES, *REPLACED])
def test_a_change_is_seen(path: Path, monkeypatch: pytest.MonkeyPatch, how: str, before: str, after: str) -> None:
    assert TEXT.count(before) == 1
    changed = TEXT.replace(before, after).encode()
    if how == "from text":
        module = load_file(path)
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", how != "from Python's cache")
        monkeypatch.syspath_prepend(path.parent)
        module = importlib.import_module(path.stem)
    assert is_as_written(module, TEXT.encode())
    assert is_as_written(module, changed) == (how == "of unknown code" and (before, after) not in REPLACED)
