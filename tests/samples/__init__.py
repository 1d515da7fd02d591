"""Every op's samples and bad calls, a family a file as in the catalogue."""

from importlib import import_module

from opstage.ops.catalogue import FAMILIES
from tests.samples.sample import BadCall, Sample

_modules = [import_module(f"tests.samples.{family}") for family in FAMILIES]
SAMPLES: list[Sample] = [sample for module in _modules for sample in module.SAMPLES]
BAD_CALLS: list[BadCall] = [bad for module in _modules for bad in module.BAD_CALLS]
