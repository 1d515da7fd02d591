"""Certified bounds of programs: they hold for every input in a box, rounding included."""
