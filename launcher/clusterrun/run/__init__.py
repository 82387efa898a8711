"""The table of contents of a launch: resolve, inspect, join, plan, supervise, report."""
