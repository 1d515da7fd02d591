"""What is asked of nccl4py is there under that name, with those arguments: the stand-ins of other tests cannot tell.

The library beneath it, 400 MB, is not here; nothing of NCCL is run.
"""

from __future__ import annotations

import inspect
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from opstage.distributed import nccl as engine
from opstage.ops.errors import UsageError
from tests.cuda.nccl import Nccl

if find_spec("nccl") is None:
    pytest.skip("nccl4py is not installed; make cuda-compile installs it", allow_module_level=True)

CALLS: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Communicator.init": ((2, 0, "unique"), {}),
    "Communicator.send": (("self", "buffer", 1), {"stream": "stream"}),
    "Communicator.recv": (("self", "buffer", 1), {"stream": "stream"}),
    "Communicator.get_async_error": (("self",), {}),
    "Communicator.abort": (("self",), {}),
    "UniqueId.from_bytes": ((b"",), {}),
    "get_unique_id": ((), {"empty": True}),
    "get_error_string": ((2,), {}),
    "get_version": ((), {}),
    "group": ((), {}),
}


def found(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


@pytest.mark.parametrize("name", CALLS)
def test_nccl4py_takes_what_it_is_asked_for(name: str) -> None:
    import nccl.core

    arguments, more = CALLS[name]
    inspect.signature(found(nccl.core, name)).bind(*arguments, **more)
    if name != "get_version":
        inspect.signature(found(Nccl(), name)).bind(*arguments, **more)  # nor does the stand-in take anything else


def test_results_have_the_numbers_that_are_asked_for() -> None:
    from nccl.bindings import nccl as bindings

    assert (int(bindings.Result.Success), int(bindings.Result.InProgress)) == (engine._WELL, engine._GOING_ON)


def test_bytes_of_a_gpu_are_a_type_of_nccl() -> None:
    import nccl.core

    described = engine.DeviceBytes(4096, 12).__cuda_array_interface__
    assert nccl.core.NcclDataType(np.dtype(described["typestr"])) == nccl.core.UINT8


def test_an_identity_goes_through_bytes() -> None:
    import nccl.core

    empty = nccl.core.get_unique_id(empty=True)
    assert bytes(nccl.core.UniqueId.from_bytes(bytes(empty))) == bytes(empty)


def test_a_missing_library_is_told() -> None:
    import nccl.core

    if nccl.core.get_version().libnccl is not None:
        pytest.skip("libnccl is here")
    with pytest.raises(UsageError, match=r"libnccl.so.2 was not found.*opstage\[nccl\]"):
        engine.load()
