"""A repair task small enough to learn on one core: the pure twin of what the tiny policy does in a sandbox (E1, E4 to E6).

What others may import, by module: ``language`` (the command language and its vocabulary), ``twin`` (the task and its environment),
``teacher`` (a scripted policy with knobs, and the exact value of each of its states), ``estimators`` (values as the recipe would get
them). Pure: no clock, no files, random choices from a seed. Its results are about algorithms in a miniature, not about programming.
"""
