"""Sessions on every interpreter that computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pytest

from opstage import Options, Session

NewSession: TypeAlias = Callable[..., Session]


@pytest.fixture(params=["eager", "compiled"])
def new_session(request: pytest.FixtureRequest) -> NewSession:
    """A session that computes each op at once, and one that records: `new_session(dtype="float64")`."""
    backend = request.param

    def make(**options: object) -> Session:
        return Session(Options(backend=backend).replace(**options))

    return make


@pytest.fixture
def session(new_session: NewSession) -> Session:
    """One of them, in float64."""
    return new_session(dtype="float64")
