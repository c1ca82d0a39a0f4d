"""The part of a command's output that a policy sees, and the output that submits its work (the protocol of mini-swe-agent 2.4, A2.1).

Owns the two rules that training data depend on. The command was run by the harness.
"""

from __future__ import annotations

from holdfast_recipes.prompts.swe import SUBMIT_WORD

WHOLE_BELOW = 10_000
KEPT_AT_EACH_END = 5_000


def shown(output: str, whole_below: int = WHOLE_BELOW, kept: int = KEPT_AT_EACH_END) -> str:
    """An output of fewer than 10,000 characters unchanged; of a longer one the first and last 5,000 and the number left out between
    them.
    """
    if len(output) < whole_below:
        return output
    left_out = max(0, len(output) - 2 * kept)
    return f"{output[:kept]}\n[{left_out} characters left out]\n{output[max(kept, len(output) - kept) :]}"


def submission(output: str, exit_code: int | None) -> str | None:
    """The patch that a command hands in, or None: it succeeded, and the first line that it printed is the word alone. The rest of the
    output is the patch, possibly empty."""
    first, _, rest = output.lstrip().partition("\n")
    return rest if exit_code == 0 and first.strip() == SUBMIT_WORD else None
