"""The agent loop on fakes and in virtual time: limits, format errors, faults as values, exact token ids (D8)."""

from __future__ import annotations

import asyncio

import pytest
from holdfast import OutcomeUnknownError, SandboxLostError, ServiceUnavailableError
from holdfast_recipes.core.calls import CallFault, ToolCall
from holdfast_recipes.core.scored import Blame, Status
from holdfast_recipes.core.spans import loss_mask
from holdfast_recipes.core.template import render, text_of
from holdfast_recipes.core.trajectory import Observation
from holdfast_recipes.harness.conversation import ChatConversation, TokenConversation
from holdfast_recipes.harness.limits import BROWSER, EDITOR, MINI, Layer, Limit, Limits, RolloutLimits
from holdfast_recipes.harness.loop import UNANSWERED_S, Episode, run, turn_seed
from holdfast_recipes.harness.toolset import Result
from holdfast_recipes.policy.base import ContextLengthError, PolicyRefusedError, PolicyUnavailableError
from holdfast_recipes.policy.scripted import ScriptedTokens, call, written
from holdfast_recipes.policy.tokenizer import ByteTokenizer

from tests.recipes.harness.fakes import SUBMIT, FakeChat, FakeToolset
from tests.recipes.harness.virtual import now, run_virtual

FIRST = [{"role": "user", "content": "Repair it."}]


def episode(chat: FakeChat, toolset: FakeToolset, limits: Limits = MINI, seed: int | None = 7) -> Episode:
    return run_virtual(run(ChatConversation(chat), toolset, FIRST, limits, seed=seed))


def limited(**rollout: object) -> Limits:
    return Limits(MINI.layers, RolloutLimits(**rollout))  # type: ignore[arg-type]


def test_a_rollout_that_hands_its_work_in() -> None:
    chat = FakeChat(call("bash", command="ls"), call("bash", command="submit"), "never asked for")
    toolset = FakeToolset({"ls": "a.py", "submit": SUBMIT})
    done = episode(chat, toolset)
    assert (done.status, done.blame, done.reason, done.submission) == (Status.COMPLETED, None, "submitted", "the patch")
    assert [message["role"] for message in done.messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert done.messages[1]["tool_calls"][0]["id"] == done.messages[2]["tool_call_id"] == "call_0_0"
    assert [turn.observations[0].text for turn in done.turns] == ["a.py", "handed in"]
    assert chat.seeds == [turn_seed(7, 0), turn_seed(7, 1)]
    assert done.exit_status == "Submitted"


def test_calls_after_the_one_that_hands_in_are_not_run() -> None:
    both = call("bash", command="submit")
    both["tool_calls"] += call("bash", command="rm -rf .")["tool_calls"]
    toolset = FakeToolset({"submit": SUBMIT})
    assert episode(FakeChat(both), toolset).submission == "the patch"
    assert toolset.ran == ["submit"]


def test_several_calls_of_a_turn_run_in_order() -> None:
    both = call("bash", command="one")
    both["tool_calls"] += call("bash", command="two")["tool_calls"]
    toolset = FakeToolset({"submit": SUBMIT})
    done = episode(FakeChat(both, call("bash", command="submit")), toolset)
    assert toolset.ran == ["one", "two", "submit"]
    assert [seen.call_id for seen in done.turns[0].observations] == ["call_0_0", "call_0_1"]


@pytest.mark.parametrize(("steps", "status"), [(3, Status.TRUNCATED), (4, Status.COMPLETED)])
def test_the_step_limit_counts_turns(steps: int, status: Status) -> None:
    chat = FakeChat(*[call("bash", command="ls")] * 3, call("bash", command="submit"))
    done = episode(chat, FakeToolset({"submit": SUBMIT}), limited(steps=steps))
    assert (done.status, len(done.turns)) == (status, steps)
    assert done.exit_status == ("LimitsExceeded" if steps == 3 else "Submitted")


def test_the_token_limit_ends_before_the_next_turn() -> None:
    done = episode(FakeChat(call("bash", command="ls"), tokens=100), FakeToolset(), limited(tokens=400))
    assert (done.status, done.reason, len(done.turns)) == (Status.TRUNCATED, "tokens", 2)


def test_the_cost_limit_is_that_of_the_prices() -> None:
    done = episode(FakeChat(call("bash", command="ls"), cost_usd=1.5), FakeToolset(), limited(cost_usd=3.0))
    assert (done.status, done.reason, len(done.turns)) == (Status.TRUNCATED, "cost", 2)
    assert episode(FakeChat(call("bash", command="ls"), cost_usd=1.5), FakeToolset(), limited(steps=5, cost_usd=None)).reason == "steps"


def test_the_wall_clock_ends_a_turn_in_its_middle() -> None:
    limits = limited(wall_s=100)
    done = episode(FakeChat(call("bash", command="slow")), FakeToolset({"slow": 30.0}), limits)
    assert (done.status, done.blame, done.reason) == (Status.TIMEOUT, Blame.POLICY, "wall_clock")
    assert done.seconds == pytest.approx(100)
    assert [len(turn.observations) for turn in done.turns] == [1, 1, 1, 0]


def test_a_turn_without_a_call_is_explained_and_three_in_a_row_end_it() -> None:
    done = episode(FakeChat("I think", call("bash", command="ls"), "I think", "I think", "I think"), FakeToolset())
    assert (done.status, done.blame, done.reason, len(done.turns)) == (Status.COMPLETED, Blame.POLICY, "format", 5)
    assert done.messages[2]["role"] == "user"
    assert "`bash`" in done.messages[2]["content"]
    assert done.turns[0].faults == (str(CallFault.NO_CALL),)
    assert done.exit_status == "RepeatedFormatError"


def test_a_strict_harness_refuses_the_whole_turn() -> None:
    mixed = call("bash", command="ls")
    mixed["tool_calls"] += call("python", code="1")["tool_calls"]
    strict, lenient = FakeToolset({"submit": SUBMIT}), FakeToolset({"submit": SUBMIT}, strict=False)
    done = episode(FakeChat(mixed, mixed, call("bash", command="submit")), strict)
    assert strict.ran == ["submit"]
    assert [message["role"] for message in done.messages[1:4]] == ["assistant", "tool", "tool"]
    episode(FakeChat(mixed, mixed, mixed, mixed, call("bash", command="submit")), lenient)
    assert lenient.ran == ["ls"] * 4 + ["submit"]


def test_inference_has_three_tries_with_the_same_seed() -> None:
    busy = PolicyUnavailableError("busy")
    chat = FakeChat(busy, busy, call("bash", command="submit"))
    done = episode(chat, FakeToolset({"submit": SUBMIT}))
    assert done.status is Status.COMPLETED
    assert chat.seeds == [turn_seed(7, 0)] * 3
    assert done.seconds == pytest.approx(1 + 2)
    done = episode(FakeChat(busy), FakeToolset())
    assert (done.status, done.blame, done.reason) == (Status.ABORTED, Blame.INFRASTRUCTURE, "policy_unavailable")
    assert done.seconds == pytest.approx(1 + 2)


def test_inference_follows_the_pause_that_the_endpoint_asks_for() -> None:
    done = episode(FakeChat(PolicyUnavailableError("busy", 20.0), call("bash", command="submit")), FakeToolset({"submit": SUBMIT}))
    assert done.seconds == pytest.approx(20)


@pytest.mark.parametrize(("takes_s", "status", "seconds"), [(299.9, Status.COMPLETED, 299.9), (300.1, Status.ABORTED, 3 * 300 + 1 + 2)])
def test_inference_times_out_at_its_limit_and_not_before(takes_s: float, status: Status, seconds: float) -> None:
    async def slow() -> dict[str, object]:
        await asyncio.sleep(takes_s)
        return call("bash", command="submit")

    done = episode(FakeChat(slow), FakeToolset({"submit": SUBMIT}))
    assert done.status is status
    assert done.seconds == pytest.approx(seconds)
    assert done.reason == ("submitted" if status is Status.COMPLETED else "inference_timeout")


@pytest.mark.parametrize(
    ("error", "status", "blame", "reason"),
    [
        (ContextLengthError("too long"), Status.TRUNCATED, None, "tokens"),
        (PolicyRefusedError("wrong key"), Status.ABORTED, Blame.INFRASTRUCTURE, "policy_refused"),
        (ZeroDivisionError(), Status.ABORTED, Blame.INFRASTRUCTURE, "ZeroDivisionError"),
    ],
)
def test_a_policy_that_cannot_answer_is_asked_once(error: Exception, status: Status, blame: Blame | None, reason: str) -> None:
    chat = FakeChat(error)
    done = episode(chat, FakeToolset())
    assert (done.status, done.blame, done.reason, len(chat.seeds)) == (status, blame, reason, 1)


@pytest.mark.parametrize(
    ("error", "blame", "reason", "oom"),
    [
        (SandboxLostError("sandbox_gone", "gone", reason="node-lost"), Blame.INFRASTRUCTURE, "node-lost", False),
        (SandboxLostError("sandbox_gone", "gone", reason="oom", fault="workload"), Blame.WORKLOAD, "oom", True),
        (OutcomeUnknownError("outcome_unknown", "who knows"), Blame.INFRASTRUCTURE, "outcome_unknown", False),
        (ServiceUnavailableError("unavailable", "later"), Blame.INFRASTRUCTURE, "unavailable", False),
        (KeyError("defect"), Blame.INFRASTRUCTURE, "KeyError", False),
    ],
)
def test_a_lost_answer_aborts_and_nothing_is_run_again(error: Exception, blame: Blame, reason: str, oom: bool) -> None:
    toolset = FakeToolset({"break": error})
    done = episode(FakeChat(call("bash", command="ls"), call("bash", command="break")), toolset)
    assert (done.status, done.blame, done.reason, done.oom) == (Status.ABORTED, blame, reason, oom)
    assert toolset.ran == ["ls", "break"]
    assert len(done.turns) == 2
    assert done.turns[1].observations == ()


def test_a_call_without_an_answer_is_an_infrastructure_failure() -> None:
    layers = dict(MINI.layers) | {Layer.OBSERVATION: Limit(60)}
    done = episode(FakeChat(call("bash", command="hang")), FakeToolset({"hang": 1e6}), Limits(layers, RolloutLimits(wall_s=None)))
    assert (done.status, done.blame, done.reason) == (Status.ABORTED, Blame.INFRASTRUCTURE, "observation_unanswered")
    assert done.seconds == pytest.approx(60 + UNANSWERED_S)


def test_a_command_that_timed_out_is_an_observation() -> None:
    late = Result(Observation("too late", exit_code=124, cause="timeout"))
    done = episode(FakeChat(call("bash", command="slow"), call("bash", command="submit")), FakeToolset({"slow": late, "submit": SUBMIT}))
    assert done.status is Status.COMPLETED
    assert done.turns[0].observations[0].exit_code == 124


@pytest.mark.parametrize(("limits", "timeout_s"), [(MINI, 60), (EDITOR, 120), (BROWSER, 30)])
def test_a_call_is_given_the_time_of_its_layer(limits: Limits, timeout_s: float) -> None:
    class Timed(FakeToolset):
        async def run(self, call: ToolCall, *, timeout_s: float) -> Result:
            given.append(timeout_s)
            return SUBMIT

    given: list[float] = []
    episode(FakeChat(call("bash", command="ls")), Timed(), limits)
    assert given == [timeout_s]


def test_cancelling_a_rollout_is_not_swallowed() -> None:
    async def scene() -> bool:
        task = asyncio.ensure_future(run(ChatConversation(FakeChat(1e6)), FakeToolset(), FIRST, MINI))
        await asyncio.sleep(5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return now() == 5

    assert run_virtual(scene())


def tokens_of(*turns: str, limits: Limits = MINI) -> tuple[Episode, ByteTokenizer]:
    tokenizer = ByteTokenizer()
    policy = ScriptedTokens(turns, tokenizer, tokenizer.special("<|im_end|>"), version=3)
    toolset = FakeToolset({"ls": "a.py", "submit": SUBMIT})
    return run_virtual(run(TokenConversation(policy, tokenizer), toolset, FIRST, limits, seed=1)), tokenizer


def test_held_ids_are_those_of_the_template_with_loss_on_what_was_sampled() -> None:
    done, tokenizer = tokens_of(written("bash", thought="I look around.", command="ls"), written("bash", thought="Done.", command="submit"))
    tokens = done.tokens
    assert tokens is not None
    assert done.reason == "submitted"
    rendered = text_of(render(done.messages[:-1], done.tools))
    assert tokenizer.decode(tokens.ids) == rendered.removesuffix("\n")  # the line break after the last turn was never needed
    assert list(tokens.loss_mask) == loss_mask(tokens.spans, None, len(tokens.ids))
    sampled = tokenizer.decode([token for token, bit in zip(tokens.ids, tokens.loss_mask, strict=True) if bit])
    assert sampled.count("<|im_end|>") == 2
    assert "a.py" not in sampled
    assert "I look around." in sampled
    assert tokens.versions == (3, 3)
    assert {span.turn for span in tokens.spans if span.supervised} == {0, 1}


@pytest.mark.parametrize("room", [-1, 0, 40])
def test_the_token_limit_counts_what_a_tool_answered(room: int) -> None:
    """A turn is not asked for when the answers to the last one already used up the limit, and it has the room that they left."""
    turns = (written("bash", command="ls"), "x" * 500)
    full, _ = tokens_of(*turns)
    assert full.tokens is not None
    second = next(span.start for span in full.tokens.spans if span.turn == 1 and span.kind.value == "content")
    done, _ = tokens_of(*turns, limits=limited(tokens=second + room))
    assert done.tokens is not None
    assert (done.status, done.reason, len(done.turns)) == (Status.TRUNCATED, "tokens", 2 if room > 0 else 1)
    assert sum(span.end - span.start for span in done.tokens.spans if span.turn == 1 and span.supervised) == max(0, room)


def test_held_ids_grow_only_also_after_a_turn_without_a_call() -> None:
    """What was shown to the policy stays as it was, and the messages, rendered again, give the same text: after a message of a user the
    template would drop the thoughts of earlier turns."""
    done, tokenizer = tokens_of("<think>\nHm.\n</think>\n\nWell.", written("bash", thought="Now.", command="submit"))
    tokens = done.tokens
    assert tokens is not None
    text = tokenizer.decode(tokens.ids)
    assert "Hm." in text
    assert text.count("<|im_start|>assistant") == 2
    assert text.index("calls no tool") > text.index("Well.<|im_end|>")
    assert text_of(render(done.messages[:-1], done.tools)).removesuffix("\n") == text


def test_an_endpoint_is_shown_the_thoughts_before_a_format_error() -> None:
    first = {"role": "assistant", "content": "Well.", "reasoning_content": "Hm."}
    done = episode(FakeChat(first, call("bash", command="submit")), FakeToolset({"submit": SUBMIT}))
    assert "<think>\nHm.\n</think>" in text_of(render(done.messages[:3], done.tools, generation_prompt=True))
    assert done.messages[2]["role"] == "user"


def test_a_turn_that_had_no_room_gets_an_end_without_loss() -> None:
    tokenizer = ByteTokenizer()
    policy = ScriptedTokens(["x" * 500, written("bash", command="submit")], tokenizer, tokenizer.special("<|im_end|>"))
    conversation = TokenConversation(policy, tokenizer)
    done = run_virtual(run(conversation, FakeToolset({"submit": SUBMIT}), FIRST, MINI, turn_tokens=100))
    assert done.tokens is not None
    assert done.turns[0].text == "x" * 100
    assert "cut off at its limit" in done.messages[2]["content"]
    first = [span for span in done.tokens.spans if span.turn == 0]
    assert [(span.kind.value, span.end - span.start) for span in first if span.kind.value != "header"] == [
        ("content", 100),
        ("glue", 1),
        ("glue", 1),
    ]
    assert list(done.tokens.loss_mask) == loss_mask(done.tokens.spans, None, len(done.tokens.ids))


def test_a_malformed_turn_keeps_its_text_and_its_ids() -> None:
    broken = '<tool_call>\n{"name": "bash", "arguments": {"command": "ls"\n</tool_call>'
    done, tokenizer = tokens_of(broken, written("bash", thought="Again.", command="submit"))
    assert done.messages[1] == {"role": "assistant", "content": broken}
    assert done.messages[2]["role"] == "tool"
    assert done.tokens is not None
    assert tokenizer.decode(done.tokens.ids) == text_of(render(done.messages[:-1], done.tools)).removesuffix("\n")
