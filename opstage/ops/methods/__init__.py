"""The methods of `Ops`, each written once with its docstring as a call of `bind`, one file per family as in the
catalogue."""
