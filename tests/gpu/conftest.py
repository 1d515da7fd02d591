"""Tests that need a GPU; where there is none, all are skipped, and one line says why."""

from __future__ import annotations

import pytest

from .here import missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))
