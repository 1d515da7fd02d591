"""Every name of the guide's table for who comes from PyTorch, asked for here, is there or answers with ours."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import opstage
from opstage.ops.hints import load_names
from opstage.ops.protocol import OPS
from opstage.options import Options
from tests.docs.test_pages import PAIRS
from tests.structure.test_reference_table import NAMES, resolve

ROWS = [
    (theirs.rsplit(".", 1)[1], theirs, ours) for cells, ours in PAIRS for theirs in re.findall(r"`([\w.]+)`", cells)
]
FUNCTIONS = [row for row in ROWS if "`ops." in row[2] or "derived" in row[2]]
OTHERS = [row for row in ROWS if row not in FUNCTIONS]
OPS_NAMES, REF_NAMES, PACKAGE_NAMES, TORCHLEAN = map(load_names, ("ops", "refs", "package", "torchlean"))
_OURS = re.compile(r"\bops\.(?!derived|cursor)(\w+)|\b(opstage(?:\.\w+)+)")


def ours(text: str) -> set[str]:
    """The last parts of our names in a text."""
    return {(op or path).rsplit(".", 1)[-1] for op, path in _OURS.findall(text)}


def asked(program: Any, options: Options | None = None) -> str:
    with pytest.raises(AttributeError) as caught:
        opstage.run(program, np.ones((2, 3)), options=options)
    return str(caught.value)


@pytest.mark.parametrize(("name", "path", "cells"), FUNCTIONS, ids=[row[1] for row in FUNCTIONS])
def test_a_function_answers_with_our_name(name: str, path: str, cells: str) -> None:
    on_ref = asked(lambda ops, x: getattr(x, name))
    if name in OPS:
        assert f"ops.{name}(" in on_ref
        return
    told = asked(lambda ops, x: getattr(ops, name))
    assert told.startswith(f"ops.{name}: Opstage calls it ")
    assert ours(told) & ours(cells), (told, cells)
    assert ours(on_ref) & ours(cells), (on_ref, cells)


@pytest.mark.parametrize(("name", "path", "cells"), OTHERS, ids=[row[1] for row in OTHERS])
def test_what_is_no_op_answers_on_the_package(name: str, path: str, cells: str) -> None:
    first = path.split(".")[1]
    if hasattr(opstage, first):
        resolve(f"opstage.{first}")
        return
    with pytest.raises(AttributeError, match=f"module 'opstage' has no attribute '{first}'; (use|in a program)"):
        getattr(opstage, first)


def test_what_is_told_exists() -> None:
    texts = [*OPS_NAMES.values(), *REF_NAMES.values(), *PACKAGE_NAMES.values(), *TORCHLEAN.values()]
    told = {path or f"ops.{op}" for text in texts for op, path in _OURS.findall(text)}
    assert len(told) > 100
    for name in told:
        resolve(name)


def test_no_name_that_exists_is_in_the_tables() -> None:
    assert not OPS & {*OPS_NAMES, *REF_NAMES}
    assert [name for name in PACKAGE_NAMES if hasattr(opstage, name)] == []


@pytest.mark.parametrize("backend", ["eager", "compiled"])
def test_every_interpreter_answers_alike(backend: str) -> None:
    def differentiated(ops: Any, x: Any) -> Any:
        return opstage.transform.grad(ops, lambda inner, x: inner.where(x), x)

    for program in (lambda ops, x: ops.where(x > 0, x, x), differentiated):
        assert asked(program, Options(backend=backend)) == "ops.where: Opstage calls it ops.select(mask, x, y)"
    session = opstage.Session(Options(backend=backend))
    with pytest.raises(AttributeError, match=r"^ops\.cat: Opstage calls it ops\.concat\(\[x, y\], axis=0\)$"):
        session.cat  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError, match=r"Opstage calls it ops\.sum\(x, …\)"):
        session.leaf(np.ones(2)).sum()  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", sorted(set(opstage.derived.__all__) - OPS))
def test_a_derived_function_is_named_to_who_takes_it_for_an_op(name: str) -> None:
    for on in (lambda ops, x: getattr(ops, name), lambda ops, x: getattr(x, name)):
        told = asked(on)
        assert "Opstage calls it " in told
        assert f"opstage.ops.derived.{name}(ops" in told or name in OPS_NAMES, told


def test_a_check_tells_our_name_and_no_other() -> None:
    (error,) = opstage.check(lambda ops, x: ops.cat([x, x]), opstage.Spec("T")).errors
    assert "Opstage calls it ops.concat" in error.reason and "did you mean" not in error.reason


def test_names_of_nobody_are_no_ops() -> None:
    assert asked(lambda ops, x: ops.reluu(x)).startswith("unknown op 'reluu' (did you mean 'relu'?)")
    colour = asked(lambda ops, x: x.colour)
    assert "a ref does not have colour; ops are methods of the program's first argument" in colour
    assert asked(lambda ops, x: x.add_(x)).endswith(
        "ops.add(x, …); nothing changes in place: a program returns what is new"
    )
    assert not hasattr(opstage, "colour") and not hasattr(opstage, "nn")
    with pytest.raises(AttributeError, match=r"^module 'opstage' has no attribute 'colour'$"):
        opstage.colour  # type: ignore[attr-defined]  # noqa: B018


def answers(holder: Any, name: str) -> str:
    with pytest.raises(AttributeError) as caught:
        getattr(holder, name)
    return str(caught.value)


def torchlean() -> list[tuple[str, set[str]]]:
    """The last part of each name on TorchLean's side of the reference that is not ours, and the last parts of ours."""
    rows: dict[str, set[str]] = {}
    for theirs, here, *_ in NAMES:
        found = re.fullmatch(r"`([\w.]+)[?!]?`", theirs)
        if found is not None:
            names = {name.rsplit(".", 1)[-1] for name in re.findall(r"`((?:opstage|ops)(?:\.\w+)*)`", here)}
            rows.setdefault(found[1].rsplit(".", 1)[-1], set()).update(names)
    ours = {*OPS, *dir(opstage.Session), *opstage.__all__, *dir(opstage.interpreters), *dir(opstage)}
    return sorted((name, names) for name, names in rows.items() if name not in names and name not in ours)


@pytest.mark.parametrize(("name", "names"), torchlean(), ids=lambda value: value if isinstance(value, str) else "")
def test_torchlean_s_names_answer_with_ours_wherever_they_are_written(name: str, names: set[str]) -> None:
    module = opstage.ScalarModuleDef(np.ones(2), lambda ops, w: ops.sum(w)).instantiate()
    told = [
        asked(lambda ops, x: getattr(ops, name)),
        *[answers(each, name) for each in (opstage.Session(), module, opstage.Options(), opstage, opstage.init)],
    ]
    other = {"max": "reduce_max", "min": "reduce_min"}.get(name)
    for text in told:
        assert any(each in text for each in names), text
    assert other is None or other in told[0]


@pytest.mark.parametrize(
    ("name", "ours"),
    [("concat_dim0", "ops.concat("), ("slice_range0", "ops.slice("), ("gather_rows_nat", "ops.gather_rows(")],
)
def test_torchlean_s_ops_in_either_spelling(name: str, ours: str) -> None:
    first, *rest = name.split("_")
    for spelling in (name, first + "".join(map(str.capitalize, rest))):
        assert ours in asked(lambda ops, x, spelling=spelling: getattr(ops, spelling))
        assert ours in asked(lambda ops, x, spelling=spelling: getattr(x, spelling))


@pytest.mark.parametrize(
    ("make", "name", "ours"),
    [
        (lambda: opstage.Session(), "sgdStepAll", "opstage.Session.sgd_step_all"),
        (lambda: opstage.Param([1.0]), "cudaValue", "opstage.Param.mirror"),
        (lambda: opstage.init.Plan([opstage.init.zeros]), "PLACEMENTS", "Plan.placements"),
        (lambda: opstage.compile(lambda ops, x: ops.sum(x), np.ones(2)), "backwardWithSeed", "backward_with_seed"),
        (lambda: opstage.scalar_trainer(lambda ops, w: ops.sum(w), np.ones(2)), "adamWStep", "adamw_step"),
        (lambda: opstage.ScalarModuleDef(np.ones(2), len), "initParams", "opstage.ScalarModuleDef.init"),
    ],
)
def test_objects_answer_with_their_own_names(make: Any, name: str, ours: str) -> None:
    assert "Opstage calls it " in answers(make(), name)
    assert ours in answers(make(), name)
    assert "'colour'" in answers(make(), "colour") and "Opstage calls it" not in answers(make(), "colour")
    assert not hasattr(make(), "_colour")
