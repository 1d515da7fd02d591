"""`python -m tests.conformance.raises --write`: the errors of each op, found by wrong calls, into its docstring.

Without `--write` it prints the ops whose docstrings state others.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import opstage
from opstage import derived
from opstage.interpreters.registry import make_interpreter
from opstage.ops.catalogue import primitives
from opstage.ops.collective import CollectiveOps
from opstage.ops.errors import LocatedError, OpstageError
from opstage.ops.primitive import Effect
from opstage.ops.protocol import OPS, Ops
from opstage.ops.trees import flatten, unflatten
from opstage.options import Options
from tests.conformance.causes import CAUSES, Cause
from tests.conformance.derived_calls import ODD as ODD_OF_FUNCTIONS
from tests.conformance.derived_calls import derived_samples
from tests.conformance.harness import cast_tree
from tests.conformance.wrong_calls import ODD, far_indices, wrong_calls, wrong_numbers
from tests.samples import BAD_CALLS, SAMPLES
from tests.structure.test_completeness import BEHIND_A_METHOD

MOST_SAMPLES = 3
WIDTH = 120
DERIVED = sorted(f"derived.{name}" for name in derived.__all__)
NAMED = sorted(OPS - {name for name in vars(CollectiveOps) if not name.startswith("_")})  # tests/distributed has theirs
RUNS_INTO_ERRORS = {BEHIND_A_METHOD.get(name, name) for name, op in primitives().items() if Effect.RAISES in op.effects}

Stated = dict[str, list[str]]


def found(op: str) -> Stated:
    """By the name of an error the words of its causes, in the order of the table."""
    causes: dict[Cause, list[str]] = {}
    for error in _errors(op):
        cause, word = cause_of(op, error)
        words = causes.setdefault(cause, [])
        if word is not None and word not in words:
            words.append(word)
    stated: Stated = {}
    for cause in CAUSES:
        if cause in causes:
            words = cause.words.format(", ".join(causes[cause]))
            if words not in stated.setdefault(cause.error.__name__, []):
                stated[cause.error.__name__].append(words)
    return dict(sorted(stated.items()))


MESSAGES = [(cause, re.compile(cause.message)) for cause in CAUSES]


def cause_of(op: str, error: Exception) -> tuple[Cause, str | None]:
    """The cause of an error, and the word that its message gives."""
    reason = error.reason if isinstance(error, LocatedError) else str(error)
    for cause, message in MESSAGES:
        match = message.search(reason)
        if match is not None and type(error) is cause.error:
            return cause, match[1] if "{0}" in cause.words else None
    raise AssertionError(f"{op} says {reason!r}: no cause of tests/conformance/causes.py has a message like that")


def stated(docstring: str) -> Stated:
    """The section `Raises:` of a docstring."""
    _, _, section = docstring.partition("Raises:\n")
    entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section.split("\n\n")[0], re.MULTILINE)
    return {name: " ".join(text.split()).rstrip(".").split("; ") for name, text in entries}


def section(causes: Stated) -> str:
    """The same as text, to be indented by 8 columns."""
    lines = ["Raises:"]
    for name, words in causes.items():
        text = f"    {name}: {'; '.join(words)}."
        lines += textwrap.wrap(text, WIDTH - 8, subsequent_indent=" " * 8)
    return "\n".join(lines)


def documented(op: str) -> Any:
    """The method of `Ops`, or the derived function."""
    return getattr(derived, op.removeprefix("derived.")) if op.startswith("derived.") else getattr(Ops, op)


def _errors(op: str) -> Iterator[OpstageError]:
    is_derived = op.startswith("derived.")
    samples = [derived_samples()[op]] if is_derived else [sample for sample in SAMPLES if sample.op == op]
    calls = [
        (replace(sample, static=static), operands, "shape_check")
        for sample in samples[:MOST_SAMPLES]
        for operands, static in wrong_calls(sample, ODD_OF_FUNCTIONS if is_derived else ODD)
    ]
    if is_derived or op in RUNS_INTO_ERRORS:
        calls += [(samples[0], operands, "eager") for operands, _ in far_indices(samples[0])]
    if is_derived and type(samples[0].static.get("size")) is int:  # room for what is found when it runs
        less = replace(samples[0], static={**samples[0].static, "size": 1})
        calls.append((less, samples[0].arrays(np.random.default_rng(0)), "eager"))
    calls += [(call, call.arrays(), "shape_check") for call in (() if is_derived else wrong_numbers(op))]
    bad = [(call, cast_tree(call.arrays(), "float32"), "shape_check") for call in BAD_CALLS if call.op == op]
    for call, operands, backend in (*calls, *bad):
        try:
            if backend == "shape_check":
                _on_shapes(call, operands)
            else:
                opstage.run(lambda ops, *refs: call.apply(ops, *refs), *operands, options=Options(backend=backend))
        except OpstageError as error:
            yield error
        except Exception as error:
            raise AssertionError(f"{op} lets {error!r} through, of {call.static}") from error


def _on_shapes(call: Any, operands: tuple[Any, ...]) -> None:
    """The call alone, one of 25,000: a program as users run it goes through a tape too, and takes twice the time."""
    leaves, structure = flatten(operands)
    base = make_interpreter(Options(backend="shape_check"))

    def program(ops: Any, *refs: Any) -> tuple[Any, ...]:
        call.apply(ops, *unflatten(structure, refs))
        return ()

    base.execute(program, tuple(map(base.put, leaves)))


def write(op: str, causes: Stated) -> None:
    """Put the section into the docstring in the source."""
    method = documented(op)
    pad = " " * (4 if op.startswith("derived.") else 8)
    file = Path(str(sys.modules[method.__module__].__file__))  # where it is declared; its code is made of its signature
    text = file.read_text(encoding="utf-8").splitlines(keepends=True)
    functions = [node for node in ast.walk(ast.parse("".join(text))) if isinstance(node, ast.FunctionDef)]
    (place,) = [node for node in functions if node.name == method.__name__]
    source = "".join(text[place.lineno - 1 : place.end_lineno])
    opening = source.index('"""')
    closing = source.index('"""', opening + 3)
    docstring = source[opening + 3 : closing].split(f"\n\n{pad}Raises:\n")[0].rstrip()
    new = f"{docstring}\n\n{textwrap.indent(section(causes), pad)}\n{pad}" if causes else docstring
    text[place.lineno - 1 : place.end_lineno] = [source[: opening + 3] + new + source[closing:]]
    file.write_text("".join(text), encoding="utf-8")


def main(writes: bool) -> int:
    """0 where every docstring states what is found."""
    differing: dict[str, Any] = {}
    for op in [*NAMED, *DERIVED]:
        causes = found(op)
        if causes != stated(inspect.getdoc(documented(op)) or ""):
            differing[op] = causes
    for op in differing:
        if writes:
            write(op, differing[op])
        else:
            print(f"{op}\n{section(differing[op])}")
    return int(bool(differing) and not writes)


if __name__ == "__main__":
    sys.exit(main("--write" in sys.argv))
