"""Functions with `ops` as their first argument, one file per family; `opstage.derived` exports all of them."""
