"""Speed and memory, each figure beside a floor that the same run measures. `make bench` runs it; no test does.

`figures` holds the budgets and the report, `floors` measures the bare machine, `prototype` is a minimal relay; the other modules
measure Holdfast.
"""
