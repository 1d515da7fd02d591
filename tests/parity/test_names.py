"""The guide's table for who comes from PyTorch names what PyTorch has."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
import torch

from tests.docs.test_guide_tables import PAIRS, names


@pytest.mark.parametrize("name", names([theirs for theirs, _ in PAIRS]))
def test_pytorch_has_the_name(name: str) -> None:
    found: Any = torch
    path = "torch"
    for part in name.split(".")[1:]:
        path += f".{part}"
        if not hasattr(found, part):
            import_module(path)
        found = getattr(found, part)
