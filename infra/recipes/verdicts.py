"""Whether each registered hypothesis (`plan.md`) held, with the figures and the number of seeds that decide it.

Owns the rules alone. A verdict on fewer seeds than were registered says so; without the arms that it needs there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Arm = Mapping[str, Any]
RESOLVED, UNMASKED, RISES, TWICE = "resolved only", "+ unresolved, unmasked", "+ unresolved, rise segments", "2 x resolved (data-matched)"
FIXED, ADAPTIVE = "fixed 8, filtered", ("BAR 8/16, s=4", "BAR 8/16, s=16")


def verdicts(experiments: Mapping[str, Any], repaired: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = [*_repair(repaired), *_credit(experiments.get("e4", {})), _estimators(experiments.get("e5", {}))]
    for name in ("e6", "e6_hard"):
        if name in experiments:
            found += [each for arm in ADAPTIVE for each in _balance(name, arm, experiments[name])]
    return found


def _verdict(name: str, text: str, arms: list[Arm], held: bool | None, **figures: Any) -> dict[str, Any]:
    seeds = min((len(arm.get("seeds", ())) for arm in arms), default=0)
    return {"name": name, "text": text, "held": held, "seeds": seeds, "figures": figures}


def _means(what: str, **arms: Arm) -> dict[str, float]:
    """The mean of each arm over the seeds that all of them have."""
    common = set.intersection(*(set(arm["seeds"]) for arm in arms.values()))
    values = {
        name: [value for seed, value in zip(arm["seeds"], arm[f"{what}_by_seed"], strict=True) if seed in common]
        for name, arm in arms.items()
    }
    return {name: sum(each) / len(each) for name, each in values.items()}


def _repair(made: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Of E1. Without a fault arm there is no verdict on it."""
    arms, differences = made["arms"], made["differences"]
    plain = arms.get("faults 0", {})
    spoilt: Arm = next((arm for name, arm in arms.items() if name != "faults 0"), {})
    gain = differences.get("faults 0, train: RL over SFT")
    change = next((each for name, each in differences.items() if " over faults 0, " in name), None)
    most = max((count for arm in arms.values() for count in arm["updates_by_seed"]), default=0)
    whole = bool(spoilt) and spoilt["refused"] == 0 and all(count == most for count in spoilt["updates_by_seed"])
    return [
        _verdict(
            "E1-H1",
            "RL solves at least 8 points more than SFT on the train functions, interval above 0",
            [plain],
            gain["interval"][0] >= 0.08 and gain["interval"][1] > 0 if gain else None,
            difference=gain["interval"] if gain else None,
        ),
        _verdict(
            "E1-H2",
            "with 5 % faults the same within the interval, no optimiser step lost, faults counted",
            [spoilt],
            change["interval"][1] <= 0 <= change["interval"][2] and whole and spoilt["infrastructure"] > 0 if change else None,
            difference=change["interval"] if change else None,
            updates=spoilt.get("updates"),
            refused=spoilt.get("refused"),
            faults=spoilt.get("infrastructure"),
        ),
    ]


def _credit(arms: Mapping[str, Arm]) -> list[dict[str, Any]]:
    main = [arms.get(name, {}) for name in (RESOLVED, UNMASKED, RISES, TWICE)]
    resolved, unmasked, rises, twice = main
    there = all(main)
    localised = _means("localised", resolved_only=resolved, unmasked=unmasked, rises=rises, twice=twice) if there else {}
    ends = _means("solved", rises=rises, twice=twice) if there else {}
    gain, loss = rises.get("solved_over_control"), unmasked.get("solved_over_control")
    return [
        _verdict(
            "E4-H1",
            "rise segments of unresolved runs add at least 5 points to resolved runs alone",
            [resolved, rises],
            gain[1] > 0 and gain[0] >= 0.05 if gain else None,
            difference=gain,
        ),
        _verdict(
            "E4-H2",
            "unresolved runs without masks are worse than none",
            [resolved, unmasked],
            loss[2] < 0 if loss else None,
            difference=loss,
        ),
        _verdict(
            "E4-H3",
            "rise segments localise best of the four main arms",
            main,
            localised["rises"] > max(localised[name] for name in ("resolved_only", "unmasked", "twice")) if there else None,
            **localised,
        ),
        _verdict(
            "E4-H4",
            "twice the resolved runs is at least as good as rise segments",
            [rises, twice],
            ends["twice"] >= ends["rises"] if there else None,
            **ends,
        ),
    ]


def _estimators(arms: Mapping[str, Arm]) -> dict[str, Any]:
    found = arms.get("MC(8)", {})
    correlation = found.get("spearman")
    return _verdict(
        "E5-H1",
        "MC(8) has a rank correlation of at least 0.8 with the exact values",
        [found],
        None if correlation is None else correlation >= 0.8,
        spearman=correlation,
    )


def _balance(name: str, arm: str, arms: Mapping[str, Arm]) -> list[dict[str, Any]]:
    mine, plain = arms.get(arm, {}), arms.get(FIXED, {})
    there, label = "solved" in mine and "solved" in plain, f"{name.upper().replace('_', ' ')}"
    difference = mine.get("solved_over_fixed")
    return [
        _verdict(
            f"{label}-H0, {arm}",
            "no difference in what is solved after the same updates (two-sided)",
            [mine, plain],
            difference[1] <= 0 <= difference[2] if difference else None,
            difference=difference,
        ),
        _verdict(
            f"{label}-H1, {arm}",
            "more of the groups trained on are balanced",
            [mine, plain],
            mine["balanced_share"] > plain["balanced_share"] if there else None,
            adaptive=mine.get("balanced_share"),
            fixed=plain.get("balanced_share"),
        ),
        _verdict(
            f"{label}-H2, {arm}",
            "it generates at least 1.2 times the rollouts",
            [mine, plain],
            mine["generated"] >= 1.2 * plain["generated"] if there else None,
            adaptive=mine.get("generated"),
            fixed=plain.get("generated"),
        ),
    ]
