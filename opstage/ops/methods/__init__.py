"""Every method of `Ops`, written once with its docstring, as a call of `bind`: a family a file, as in the catalogue."""
