"""E1: a tiny policy learns to repair a real library in real sandboxes, through a small command language.

`material` gets the library (toolz, by pip, hash-pinned), `tasks` makes and validates mutants of it, `helper` is the script behind the
commands inside the sandbox, `job` is a task to the agent loop, `teacher` a scripted policy, `learning` SFT, RL and evaluation.
Real are the commands, files, tests and the grading in a second sandbox; the language is small so that a policy of 100,000 parameters can
speak it, and what it learns is that language, not programming.
"""
