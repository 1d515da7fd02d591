"""What is asked of cuda.core and of the driver is there under that name: the stand-ins of other tests cannot tell."""

from __future__ import annotations

import ast
import inspect
from importlib import import_module

import pytest

from opstage.compiler.gpu import driver as device
from opstage.compiler.gpu.machine import OF_KERNELS, OF_THE_MACHINE

MEMBERS = {
    "Device": ("set_current", "create_stream", "device_id", "compute_capability", "name", "properties", "uuid"),
    "DeviceMemoryResource": ("allocate", "attributes", "handle"),
    "Buffer": ("handle", "close", "fill", "from_handle"),
    "Stream": ("handle", "record", "sync", "wait", "create_graph_builder"),
    "Event": ("sync", "is_done"),
    "ObjectCode": ("from_cubin", "get_kernel"),
    "DeviceMemoryResourceOptions": (),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_cuda_core_has(name: str) -> None:
    found = getattr(import_module("cuda.core"), name)
    assert [member for member in MEMBERS[name] if not hasattr(found, member)] == []


def test_a_capture_is_begun_ended_completed_and_launched() -> None:
    graphs = import_module("cuda.core.graph")
    of_builder = ("begin_building", "end_building", "complete", "close")
    assert [member for member in of_builder if not hasattr(graphs.GraphBuilder, member)] == []
    assert hasattr(graphs.Graph, "launch")


def test_a_part_of_memory_is_no_memory_of_its_own() -> None:
    """It names whom the bytes belong to; closing it, even with nothing there, gives nothing back."""
    owner = object()
    part = import_module("cuda.core").Buffer.from_handle(0x1000, 64, owner=owner)
    assert (int(part.handle), part.size, part.owner) == (0x1000, 64, owner)
    part.close()


def test_a_launch_is_configured_by_blocks_and_threads() -> None:
    configuration = import_module("cuda.core").LaunchConfig(grid=7, block=256)
    assert (configuration.grid, configuration.block, configuration.shmem_size) == ((7, 1, 1), (256, 1, 1), 0)


def test_every_function_of_the_driver_that_is_called_is_there() -> None:
    tree = ast.parse(inspect.getsource(device))
    called = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr.startswith("cu")}
    called = {name for name in called if name[2:3].isupper()}
    assert {"cuMemcpyHtoDAsync", "cuMemAllocHost"} <= called
    driver = import_module("cuda.bindings.driver")
    assert [name for name in called if not hasattr(driver, name)] == []


def test_the_driver_has_every_error_that_ends_the_use_of_a_gpu() -> None:
    names = set(import_module("cuda.bindings.driver").CUresult.__members__)
    assert names >= OF_KERNELS | OF_THE_MACHINE
    assert not OF_KERNELS & OF_THE_MACHINE


def test_errors_after_which_a_process_must_be_relaunched_are_among_them() -> None:
    """As cuda.core explains them; its own module, which a later one may lack."""
    explained = pytest.importorskip("cuda.core._utils.driver_cu_result_explanations")
    driver = import_module("cuda.bindings.driver")
    found = {
        driver.CUresult(n).name for n, text in explained.DRIVER_CU_RESULT_EXPLANATIONS.items() if "relaunch" in text
    }
    assert len(found) > 8
    assert found <= OF_KERNELS | OF_THE_MACHINE
