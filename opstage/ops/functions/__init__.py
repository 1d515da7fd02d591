"""Functions that take `ops` first, a family a file; `opstage.derived` has them all."""
