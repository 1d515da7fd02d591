"""Certified bounds of programs: what holds for every input in a box, rounding included."""
