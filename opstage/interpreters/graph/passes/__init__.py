"""Passes over graphs: functions from a body to an equivalent body."""
