"""Measurements of Opstage: `make bench`, or `python -m benchmarks NAME`."""
