"""Runs a user's function on a wrapper whose refs become invalid afterwards; shared by derivatives and bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ..ops.hints import add_hint
from ..ops.trees import Structure, flatten
from .interpreter import Wrapper

R = TypeVar("R", bound=Any)


def run_closed(
    wrapper: Wrapper[R, Any], f: Callable[..., Any], *arguments: Any, leaked: str
) -> tuple[list[R], Structure]:
    """The leaves of `f(wrapper, *arguments)` as refs of the wrapper, which is then closed, and their structure.

    `leaked` is the error for a ref that is used afterwards. A LookupError or TypeError gets a hint.
    """
    try:
        result = f(wrapper, *arguments)
    except (LookupError, TypeError) as error:
        add_hint(error)
        raise
    outputs, structure = flatten(result)
    found = [wrapper.adopt(output) for output in outputs]
    wrapper.close(leaked)
    return found, structure
