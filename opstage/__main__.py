"""The command line as `python -m opstage`, where no script of that name is installed."""

from __future__ import annotations

from .cli import main

main()
