"""Param: an owned host array, a mirror on an interpreter, and what is refused."""

from __future__ import annotations

import gc
import weakref
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from opstage.interpreters.registry import make_interpreter
from opstage.ops.errors import DtypeError, ShapeError, UsageError
from opstage.ops.primitive import Primitive, Static
from opstage.ops.trees import flatten, paths
from opstage.options import Options
from opstage.training.param import Param
from opstage.transforms.transparent import Transparent


class Device(Transparent[Any]):
    """A device as far as Param can tell: what goes in or out is copied, and counted."""

    def __init__(self, dtype: str = "float32"):
        super().__init__(make_interpreter(Options(dtype=dtype)))  # type: ignore[arg-type]
        self.uploads = self.downloads = 0

    def put(self, value: Any, /) -> Any:
        self.uploads += 1
        return np.array(self.inner.put(value))

    def get(self, ref: Any, /) -> Any:
        self.downloads += 1
        return np.array(ref)

    def bind(self, primitive: Primitive, refs: tuple[Any, ...], static: Static, /) -> tuple[Any, ...]:
        return self.inner.bind(primitive, refs, static)


def test_the_value_is_copied_in_and_read_only_out() -> None:
    given = np.arange(6, dtype=np.float32).reshape(2, 3)
    param = Param(given, name="w")
    given[:] = 9
    value = param.value
    np.testing.assert_array_equal(value, [[0, 1, 2], [3, 4, 5]])
    with pytest.raises(ValueError, match="read-only"):
        value[0, 0] = 7
    assert (param.shape, param.dtype, param.name, param.requires_grad) == ((2, 3), np.float32, "w", True)
    assert repr(param) == "<Param w (2, 3) float32>"
    assert repr(Param(1.0, requires_grad=False)) == "<Param () float64, frozen>"


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1.5, None, "float64"),
        ([1.0, 2.0], "float32", "float32"),
        (np.float16([1, 2]), None, "float32"),
        (np.ones(2, np.float32), "float64", "float64"),
        ([Fraction(1, 3)], None, "object"),
        ([0.5, 0.25], "exact", "object"),
    ],
)
def test_floats_take_the_dtype_that_is_asked_for(value: Any, dtype: str | None, expected: str) -> None:
    assert Param(value, dtype=dtype).dtype == np.dtype(expected)


def test_integers_and_masks_keep_theirs_and_take_no_gradient() -> None:
    assert Param([1, 2], dtype="float32", requires_grad=False).dtype == np.int64
    mask = Param([True], name="mask", requires_grad=False)
    assert mask.dtype == np.bool_
    with pytest.raises(DtypeError, match="parameter mask holds integers or booleans"):
        mask.requires_grad = True
    with pytest.raises(DtypeError, match="give floats, or requires_grad=False"):
        Param([1, 2])


@pytest.mark.parametrize(("value", "message"), [("text", "must hold numbers"), ([[1.0], [1.0, 2.0]], "inhomogeneous")])
def test_what_is_no_tensor_is_refused_by_name(value: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"parameter w: .*{message}"):
        Param(value, name="w")


def test_set_replaces_the_value_and_old_reads_stay_as_they_were() -> None:
    param = Param(np.zeros(3, np.float32), name="w")
    before = param.value
    new = np.array([1.0, 2.0, 3.0])
    param.set(new)
    new[:] = 0
    np.testing.assert_array_equal(param.value, [1, 2, 3])
    np.testing.assert_array_equal(before, 0)
    assert param.dtype == np.float32
    param.set([4, 5, 6])
    np.testing.assert_array_equal(param.value, [4, 5, 6])
    assert param.version == 2


def test_set_refuses_other_shapes_and_meanings_and_changes_nothing() -> None:
    param = Param(np.zeros(3, np.float32), name="w")
    with pytest.raises(ShapeError, match=r"parameter w is \(3,\) but its new value is \(1, 3\)"):
        param.set(np.ones((1, 3)))
    with pytest.raises(DtypeError, match="parameter w is float32 but its new value is bool"):
        param.set([True, False, True])
    with pytest.raises(UsageError, match=r"parameter w: .*must hold numbers"):
        param.set(["a", "b", "c"])
    table = Param([1, 2], name="table", requires_grad=False)
    with pytest.raises(DtypeError, match="parameter table is int64 but its new value is float64"):
        table.set([1.0, 2.0])
    np.testing.assert_array_equal(param.value, 0)
    assert param.version == table.version == 0


def test_a_mirror_is_put_there_once_and_read_back_on_demand() -> None:
    device = Device()
    param = Param(np.zeros(3, np.float32), name="w")
    first = param.mirror(device)
    assert param.mirror(device) is first
    assert (device.uploads, device.downloads) == (1, 0)

    param.commit(np.full(3, 2, np.float32), device)
    param.commit(np.full(3, 5, np.float32), device)
    assert param.host_stale
    assert (device.uploads, device.downloads) == (1, 0)
    np.testing.assert_array_equal(param.value, 5)
    np.testing.assert_array_equal(param.value, 5)
    assert not param.host_stale
    assert (device.uploads, device.downloads) == (1, 1)

    param.set([1.0, 1.0, 1.0])
    np.testing.assert_array_equal(param.mirror(device), 1)
    assert (device.uploads, device.downloads) == (2, 1)


def test_a_stale_host_is_brought_up_to_date_before_the_mirror_moves_or_goes() -> None:
    here, there = Device(), Device()
    param = Param(np.zeros(2, np.float32))
    param.commit(np.ones(2, np.float32), here)
    np.testing.assert_array_equal(param.mirror(there), 1)
    param.commit(np.full(2, 3, np.float32), there)
    gone = weakref.ref(param.mirror(there))
    param.release_mirror()
    gc.collect()
    assert gone() is None
    np.testing.assert_array_equal(param.value, 3)
    assert there.downloads == 1


def test_on_the_cpu_the_mirror_is_the_host_array_itself() -> None:
    ops = make_interpreter(Options())
    param = Param(np.zeros(3, np.float32))
    assert np.shares_memory(param.mirror(ops), param.value)
    new = np.ones(3, np.float32)
    param.commit(new, ops)
    assert np.shares_memory(param.value, new)
    assert not param.value.flags.writeable
    assert new.flags.writeable


def test_a_copy_that_is_out_of_date_takes_no_memory() -> None:
    ops = make_interpreter(Options())
    param = Param(np.zeros(3, np.float32))
    first = weakref.ref(param.mirror(ops))
    param.commit(np.ones(3, np.float32), ops)
    gc.collect()
    assert first() is None
    assert (param.shape, param.dtype) == ((3,), np.float32)
    np.testing.assert_array_equal(param.value, 1)


def test_a_commit_of_another_type_is_refused() -> None:
    device = Device()
    param = Param(np.zeros(3, np.float32), name="w")
    for wrong in (np.zeros(4, np.float32), np.zeros(3, np.float64)):
        with pytest.raises(ShapeError, match="parameter w is"):
            param.commit(wrong, device)
    assert not param.host_stale
    assert param.version == 0


def test_a_float_parameter_is_not_cast_silently_by_an_interpreter() -> None:
    with pytest.raises(DtypeError, match=r"parameter w is float64 .* floats are float32; make it with .*'float32'"):
        Param(np.zeros(3), name="w").mirror(Device())
    Param([1, 2], requires_grad=False).mirror(Device())


def test_a_param_is_a_leaf_of_trees() -> None:
    tree = {"b": Param(0.0), "w": [Param(0.0)]}
    assert paths(tree) == ["b", "w.0"]
    assert all(isinstance(leaf, Param) for leaf in flatten(tree)[0])
