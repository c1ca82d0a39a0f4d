"""From collected runs to the rows of a data set: filters in order, each with its count, then credit (P §3.2, §3.3.1).

Owns the order of the filters and the credit fields; the filters are in ``core.curation``, credit in ``core.credit``. Runs are processed
one by one, so a set may be larger than memory. Files and cards are in ``publish``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from holdfast_recipes.core.credit import CreditRules, credit
from holdfast_recipes.core.curation import SWE_TOKEN_LIMIT, Filter, swe_filters, token_counter
from holdfast_recipes.core.trajectory import Branch, Trajectory
from holdfast_recipes.policy.tokenizer import ByteTokenizer, Tokenizer

from .annotate import turns_with_results
from .errors import DataError, SettingError

Unresolved = Literal["credit", "drop", "all"]
UNRESOLVED: tuple[str, ...] = get_args(Unresolved)
"""The treatment of unresolved runs: those with rise segments are kept with loss on the credited turns (the paper), all are dropped, or all
are kept with loss on every turn (a control; their ``credited`` names every turn, since an unresolved run without it has no loss)."""

UNGRADED, DUPLICATE, UNANNOTATED, UNRESOLVED_DROPPED, NO_TURNS = "ungraded", "duplicate", "not_annotated", "unresolved", "no_turns"
SHARED = "turns_of_its_tree"
"""Every turn of the run that would get loss is one that it shares with a run before it."""


@dataclass(frozen=True, slots=True)
class Curation:
    """``rules.value_of`` and ``rules.check`` follow the annotation of each run: the rules of the prompt hold for values "after"."""

    unresolved: Unresolved = "credit"
    rules: CreditRules = field(default_factory=CreditRules)
    token_limit: int = SWE_TOKEN_LIMIT

    def __post_init__(self) -> None:
        if self.unresolved not in UNRESOLVED:
            raise SettingError(f"unresolved must be one of {', '.join(UNRESOLVED)}, not {self.unresolved!r}")


class Curator:
    """Feed it runs; ``dropped`` has the count of each reason, in the order of the filters, zeros included, then those of credit.

    A run is counted by the first filter that drops it: nothing graded it; a run of the same id came before; it makes no turn; the three
    filters of the paper; then, of unresolved ones, that it has no values, or the reason of ``core.credit`` (``no_rise``, broken rules).
    Of the turns that runs of a tree share, each gets loss in the first run that is kept with it.
    """

    def __init__(self, count_tokens: Callable[[Trajectory], int], settings: Curation | None = None) -> None:
        self.settings = settings or Curation()
        self.seen = self.kept = 0
        self._ids: set[str] = set()
        self._of_trees: dict[str, set[int]] = {}
        """The turns that get loss in a run that was kept, by tree."""
        self._filters: list[Filter[Trajectory]] = [
            Filter(UNGRADED, lambda run: run.reward is None),
            Filter(DUPLICATE, lambda run: run.trajectory_id in self._ids),
            Filter(NO_TURNS, lambda run: not turns_with_results(run)),
            *swe_filters(count_tokens, self.settings.token_limit),
        ]
        self.dropped: Counter[str] = Counter({each.name: 0 for each in self._filters})

    def take(self, run: Trajectory) -> Trajectory | None:
        """The run with its credit fields, or None when it is dropped."""
        self.seen += 1
        hit = next((each.name for each in self._filters if each.drops(run)), None)
        made: Trajectory | str = hit or self._credited(run)
        if isinstance(made, Trajectory) and made.branch is not None:
            made = self._once(made, made.branch)
        if isinstance(made, str):
            self.dropped[made] += 1
            return None
        self._ids.add(run.trajectory_id)
        self.kept += 1
        return made

    def _once(self, run: Trajectory, branch: Branch) -> Trajectory | str:
        """The run without loss on the shared turns that have it in another run."""
        given = self._of_trees.setdefault(branch.tree, set())
        turns = range(len(turns_with_results(run))) if run.credited is None else run.credited
        left = tuple(turn for turn in turns if turn >= branch.turn or turn not in given)
        if not left:
            return SHARED
        given.update(turn for turn in left if turn < branch.turn)
        return run if len(left) == len(turns) else replace(run, credited=left)

    def _credited(self, run: Trajectory) -> Trajectory | str:
        if run.resolved:
            return replace(run, rises=None, credited=None)
        if self.settings.unresolved == "all":
            return replace(run, rises=None, credited=tuple(range(len(turns_with_results(run)))))
        if self.settings.unresolved == "drop":
            return UNRESOLVED_DROPPED
        if run.values is None:
            return UNANNOTATED
        value_of = run.value_of or self.settings.rules.value_of
        rules = replace(self.settings.rules, value_of=value_of, check=self.settings.rules.check and value_of == "after")
        try:
            found = credit(run.values, len(turns_with_results(run)), rules)
        except ValueError as error:
            raise DataError(
                f"{run.trajectory_id}: {error}", hint="the values belong to another run, or to the other convention (value_of)"
            ) from error
        if found.reason is not None:
            return found.reason
        return replace(run, rises=found.segments, credited=tuple(sorted(found.turns)), value_of=value_of)


def curated(runs: Iterable[Trajectory], curator: Curator) -> Iterator[Trajectory]:
    """The runs that are kept, in order."""
    for run in runs:
        if (kept := curator.take(run)) is not None:
            yield kept


def token_count(tokenizer: str) -> Callable[[Trajectory], int]:
    """The way to count the tokens of a run: "recorded" (the ids that were sampled; DataError for a run without), "bytes" (an upper bound
    for byte-level tokenizers), or the path of a ``tokenizer.json`` (the student's, with the package ``tokenizers``)."""
    if tokenizer == "recorded":
        return _recorded
    if tokenizer == "bytes":
        return token_counter(lambda text: text.encode("utf-8", "replace"))
    return token_counter(_encoder(_loaded(tokenizer)))


def tokenizer(name: str) -> Tokenizer:
    """A ``tokenizer.json`` by its path, or that of bytes for "bytes"."""
    return ByteTokenizer() if name == "bytes" else _FileTokenizer(_loaded(name))


class _FileTokenizer:
    """A model's own, special tokens included both ways."""

    def __init__(self, loaded: Any) -> None:
        self._loaded = loaded

    def encode(self, text: str) -> Sequence[int]:
        return list(self._loaded.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._loaded.decode(list(ids), skip_special_tokens=False))


def _loaded(tokenizer: str) -> Any:
    path = Path(tokenizer)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        raise SettingError(f"there is no tokenizer {tokenizer}", hint="recorded, bytes, or the path of a tokenizer.json")
    try:
        import tokenizers
    except ImportError as error:
        raise SettingError("counting with a tokenizer.json needs the package tokenizers", hint="pip install tokenizers") from error
    return tokenizers.Tokenizer.from_file(str(path))


def _encoder(loaded: Any) -> Callable[[str], Sequence[int]]:
    return lambda text: loaded.encode(text, add_special_tokens=False).ids


def _recorded(run: Trajectory) -> int:
    if run.tokens is None:
        raise DataError(
            f"{run.trajectory_id}: no token ids were recorded", hint="count with --tokenizer PATH (the student's tokenizer.json), or bytes"
        )
    return len(run.tokens.ids)
