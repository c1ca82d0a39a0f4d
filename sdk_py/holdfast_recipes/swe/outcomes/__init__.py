"""From a run of a task's tests to the outcome of each: ``specs`` (which command), ``signed`` (the runner's report), ``parsers`` and
``swebench_package`` (what output means). ``workspace`` runs the commands and uses these; the verdict is ``grading``'s.
"""
