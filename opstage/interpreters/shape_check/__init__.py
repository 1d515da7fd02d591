"""The shape checker: runs programs on shapes, which may be symbolic, and reports verdicts and costs."""
