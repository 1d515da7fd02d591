"""Whether a module that was imported is what its file says now: each change is seen, and what runs changes is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from opstage.as_written import is_as_written
from opstage.loading import load_file

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
    ("WIDTH = 8", "WIDTH = 9"),
    ("WIDTH = 8", "WIDTH = 8.0"),
    ("WIDTH = 8", "WIDTH = 8; DEPTH = 3"),
    ("0.5", "0.25"),
    ("(3, 4)", "(3, 5)"),
    ("(3, 4)", "[3, 4]"),
    ("[1, 2, (3", "[1, 2, 2, (3"),
    ('"b": [2]', '"b": [3]'),
    ('"b": [2]', '"c": [2]'),
    ('{"x", "y"}', '{"x"}'),
    ("UNUSED: dict = {}", "UNUSED: dict = {'a': 1}"),
    ("width: int = 16\n    sizes", "width: int = 17\n    sizes"),
    ("(1, 2)", "(1, 3)"),
    ("default=3", "default=4"),
    ("deep = 6", "deep = 7"),
    ("width: int = 16\n\n@dataclass\nclass N", "width: int = 17\n\n@dataclass\nclass N"),
    ("depth = 7", "depth = 8"),
    ("scale = 4.0", "scale = 5.0"),
    ("p=0.25", "p=0.5"),
    ("train=True", "train=False"),
    ("x, p=0.25", "x=1, p=0.25"),
    ("static(p=1)", "static(p=2)"),
    ("2 * self.scale", "3 * self.scale"),
    ("Config(24, deep=5)", "Config(25, deep=5)"),
    ("Config(24, deep=5)", "Config(24, deep=6)"),
    ("[Config(width=32)]", "[Config(width=33)]"),
    ("rate=0.1", "rate=0.2"),
    ("return f(*args)", "return f(*args, *args)"),
]
NOT_TOLD = [("SEEN = [0]", "SEEN = [5]"), ("COUNT = 0", "COUNT = 7"), ("RED = 1", "RED = 2"), ("width=6", "width=7")]
"""What the text changes itself, and what something else is made of: a difference there is none of the file's."""


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    before = {*sys.modules}
    yield tmp_path / "written.py"
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_a_module_that_has_run_is_as_written(path: Path) -> None:
    path.write_text(TEXT)
    module = load_file(path)
    assert (module.COUNT, module.TABLE["n"], len(module.SEEN), module.NORMAL.width) == (1, 2, 2, 12)
    assert is_as_written(module, TEXT.encode())


@pytest.mark.parametrize(("before", "after"), CHANGES)
def test_each_change_is_seen(path: Path, before: str, after: str) -> None:
    assert TEXT.count(before) == 1
    path.write_text(TEXT)
    assert not is_as_written(load_file(path), TEXT.replace(before, after).encode())


@pytest.mark.parametrize(("before", "after"), NOT_TOLD)
def test_what_cannot_be_told_refuses_nothing(path: Path, before: str, after: str) -> None:
    assert TEXT.count(before) == 1
    path.write_text(TEXT)
    assert is_as_written(load_file(path), TEXT.replace(before, after).encode())


def test_a_value_that_a_program_sets_from_outside_is_seen(path: Path) -> None:
    path.write_text(TEXT)
    module = load_file(path)
    module.NAMES["a"] = 2
    assert not is_as_written(module, TEXT.encode())
