"""docs/api/options.md lists every option and every setting of a run, with its default."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from opstage.config import toml_literal
from opstage.options import Options
from opstage.runs.settings import MAY_CHANGE_ON_RESUME, CallbackSettings, DataSettings, OptimizerSettings, RunSettings
from tests.docs.blocks import DOCS

PAGE = (DOCS / "api" / "options.md").read_text(encoding="utf-8")
SECTIONS = {
    "run": RunSettings,
    "data": DataSettings,
    "optimizer": OptimizerSettings,
    "callbacks": CallbackSettings,
}


def test_options_table_names_every_field_with_its_variable_and_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(OPSTAGE_\w+)` \| [^|]+ \| `([^|]+)` \|", PAGE, re.MULTILINE)
    assert rows == [
        (f.name, f"OPSTAGE_{f.name.upper()}", toml_literal(getattr(Options(), f.name))) for f in fields(Options)
    ]


@pytest.mark.parametrize("name", SECTIONS)
def test_settings_table_names_every_key_with_its_default(name: str) -> None:
    section = PAGE.partition(f"### [{name}]\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| `([^|]+)` \|", section, re.MULTILINE)
    made = SECTIONS[name]()
    assert rows == [(f.name, toml_literal(getattr(made, f.name))) for f in fields(made)]


def test_list_of_settings_that_may_change_on_resume_is_complete() -> None:
    section = PAGE.partition("## Settings that a resumed run may change\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`((?:run|options|data)\.\w+)`", section)) == MAY_CHANGE_ON_RESUME
