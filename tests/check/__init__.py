"""The shape checker held against programs that are wrong, and against runs of those that are right."""
