"""Settings for the whole suite."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("opstage", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("opstage")
