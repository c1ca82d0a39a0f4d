"""Speed and memory, each figure beside a floor that the same run measures. `make bench` runs it; no test does.

`figures` holds the budgets and the report, `floors` what a bare machine does, `prototype` a relay with nothing in it;
the other modules measure.
"""
