"""The demo: one long agent episode on real code, in one sandbox, over one session.

`material` gets the code from the package registry, `policy` is the recorded agent, `live` a real model in its place,
`episode` plays either in a living shell, and the same commands one HTTP call each; `summary` says what it cost. It uses
public names of the SDK only, so it is also the longest example there is.
"""
