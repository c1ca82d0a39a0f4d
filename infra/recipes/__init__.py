"""The proof of the recipes in a miniature: experiments whose hypotheses were committed before they ran, and the checks of `make recipes`.

`plan` reads what was registered (`plan.json`; in words `plan.md`), `jobs` runs it, `credit_ablation` (E4), `estimators` (E5) and
`balance_ablation` (E6) are the experiments on the pure twin, `repair` (E1) learns in real sandboxes, `report` makes `recipes.json` and the
tables of `results.md`. Only public names of the SDK, and what any user of `holdfast_recipes` has.
"""
