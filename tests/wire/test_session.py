"""The clauses of PROTOCOL §3–§6 one by one, with two ends driven against each other; the time is an argument."""

from __future__ import annotations

import pytest
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import (
    Ack,
    Close,
    Closed,
    Credit,
    Exited,
    Failed,
    Hello,
    Open,
    Opened,
    Output,
    Ping,
    Pong,
    Run,
    Signal,
    Started,
    Write,
)
from holdfast_wire.limits import CHANNELS, WINDOW_BYTES
from holdfast_wire.session.agent_session import AgentSession
from holdfast_wire.session.client_session import ClientSession
from holdfast_wire.session.events import Attached, Delivered, Dropped, Lost, Ponged, Retired, Silent

ID, SECRET = "a-session-for-tests", b"a secret of tests"


class Pair:
    """A client and an agent with a perfect wire between them that can be cut."""

    def __init__(self) -> None:
        self.client = ClientSession(ID, SECRET)
        self.agent = AgentSession(ID, SECRET, "epoch-1")
        self.now = 0.0
        self.connect()

    def connect(self, client: ClientSession | None = None) -> list[bytes]:
        client = client or self.client
        client.connect(self.now)
        (hello,) = client.outgoing()
        frame, _ = decode(hello)
        assert isinstance(frame, Hello)
        self.agent.attach(frame, self.now)
        self.down(client)
        return [hello]

    def up(self, client: ClientSession | None = None) -> list[object]:
        for message in (client or self.client).outgoing():
            self.agent.receive(message, self.now)
        return list(self.agent.events())

    def down(self, client: ClientSession | None = None) -> None:
        for message in self.agent.outgoing():
            (client or self.client).receive(message, self.now)

    def cut(self) -> None:
        self.client.disconnected()
        self.agent.disconnected()

    def open_shell(self) -> int:
        number = self.client.open("shell", {})
        self.up()
        self.agent.send(Opened(number, {}))
        self.down()
        self.client.events()
        return number


def test_first_attach_is_not_a_resume() -> None:
    pair = Pair()
    assert pair.client.events() == [Attached(1, False, {})]
    pair.cut()
    pair.connect()
    assert pair.client.events() == [Attached(2, True, {})]


def test_a_lost_welcome_does_not_lose_the_session() -> None:
    client, agent = ClientSession(ID, SECRET), AgentSession(ID, SECRET, "e")
    for attempt in range(2):
        client.connect(0.0)
        hello, _ = decode(client.outgoing()[0])
        assert isinstance(hello, Hello)
        agent.attach(hello, 0.0)
        if attempt:
            for message in agent.outgoing():
                client.receive(message, 0.0)
    assert [type(e) for e in client.events()] == [Attached]


def test_another_secret_is_refused() -> None:
    pair = Pair()
    with pytest.raises(HoldfastError) as caught:
        pair.connect(ClientSession(ID, b"another secret of tests"))
    assert caught.value.code == "session_forbidden"
    assert pair.agent.attached, "the attached client keeps its session"


def test_a_restarted_agent_is_detected_by_its_epoch() -> None:
    pair = Pair()
    pair.open_shell()
    pair.cut()
    pair.agent = AgentSession(ID, SECRET, "epoch-2")
    pair.connect()
    (lost,) = [e for e in pair.client.events() if isinstance(e, Lost)]
    assert lost.error.code == "session_lost"
    assert lost.error.reason == "agent-restarted"
    with pytest.raises(HoldfastError):
        pair.client.open("shell", {})


def test_a_delayed_greeting_of_the_same_client_is_fenced() -> None:
    pair = Pair()
    pair.client.connect(0.0)
    stale, _ = decode(pair.client.outgoing()[0])
    assert isinstance(stale, Hello)
    pair.cut()
    pair.connect()
    with pytest.raises(HoldfastError) as caught:
        pair.agent.attach(stale, 0.0)
    assert caught.value.code == "session_fenced"
    assert pair.agent.attached


def test_take_over_drops_channels_and_fences_the_old_client() -> None:
    pair = Pair()
    number = pair.open_shell()
    pair.agent.events()
    second = ClientSession(ID, SECRET, take_over=True)
    pair.connect(second)
    assert Dropped(number) in pair.agent.events()
    pair.client.disconnected()
    with pytest.raises(HoldfastError) as caught:
        pair.connect()
    assert caught.value.code == "session_fenced"
    other = second.open("shell", {})
    assert [type(e) for e in pair.up(second)] == [Open]
    assert other == 1


def test_output_comes_once_and_in_order_over_a_cut() -> None:
    pair = Pair()
    number = pair.open_shell()
    pair.client.send(Run(number, "c", {}))
    pair.up()
    pair.agent.send(Started(number, "c", {}))
    pair.agent.send(Output(number, 1, b"one"))
    pair.down()
    pair.agent.send(Output(number, 1, b"two"))
    pair.agent.outgoing()  # on its way when the wire is cut
    pair.cut()
    pair.agent.send(Exited(number, "c", {"exit_code": 0}))
    pair.connect()
    facts = [e for e in pair.client.events() if not isinstance(e, Attached)]
    assert [getattr(e, "data", type(e)) for e in facts if type(e).__name__ != "Writable"] == [Started, b"one", b"two", Exited]


def test_the_end_of_a_command_is_known_to_be_delivered_by_its_ack() -> None:
    pair = Pair()
    number = pair.client.open("command", {"id": "c"})
    pair.up()
    pair.agent.send(Started(number, "c", {}))
    pair.agent.send(Exited(number, "c", {}))
    pair.down()
    assert not [e for e in pair.up() if isinstance(e, Delivered)]
    pair.now = 0.3
    pair.client.tick(pair.now)
    assert pair.up() == [Delivered(number, "c"), Retired(number)]


def test_the_next_greeting_replaces_a_lost_last_ack() -> None:
    pair = Pair()
    number = pair.client.open("command", {"id": "c"})
    pair.up()
    pair.agent.send(Started(number, "c", {}))
    pair.agent.send(Exited(number, "c", {}))
    pair.down()
    pair.cut()
    pair.connect()
    events = pair.agent.events()
    assert Delivered(number, "c") in events
    assert Retired(number) in events


def test_acknowledgements_are_sent_with_some_messages_but_not_with_each() -> None:
    pair = Pair()
    number = pair.open_shell()
    pair.client.tick(pair.now + 1)  # acknowledges the opening of the shell
    for turn in range(3):
        pair.now += 1
        sent: list[type] = []
        for moment in range(4):
            pair.client.send(Run(number, f"c{turn}-{moment}", {}))
            messages = pair.client.outgoing()
            sent += [type(decode(message)[0]) for message in messages]
            for message in messages:
                pair.agent.receive(message, pair.now)
            pair.agent.send(Exited(number, f"c{turn}-{moment}", {}))
            answer = pair.agent.outgoing()
            assert [type(decode(message)[0]) for message in answer] == ([Ack, Exited] if moment == 0 else [Exited])
            for message in answer:
                pair.client.receive(message, pair.now)
        assert sent.count(Run) == 4
        assert 1 <= sent.count(Ack) <= 2, "at most once in half of the longest delay, by the time of the last message"
        due = pair.client.deadline() or 0
        assert pair.now < due <= pair.now + pair.client.timing.ack_delay_s, "the rest is acknowledged within the longest delay"


def test_credit_bounds_bytes_and_lets_signals_pass() -> None:
    pair = Pair()
    number = pair.client.open("command", {"id": "c"})
    while room := pair.client.room(number):
        pair.client.send(Write(number, b"x" * min(room, 128 * 1024)))
    with pytest.raises(HoldfastError):
        pair.client.send(Write(number, b"xx"))
    pair.client.send(Signal(number, "KILL"))
    events = pair.up()
    assert sum(len(e.data) for e in events if isinstance(e, Write)) == WINDOW_BYTES - 1
    assert events[-1] == Signal(number, "KILL")
    pair.agent.consume(number, WINDOW_BYTES // 2)
    pair.down()
    assert pair.client.room(number) >= WINDOW_BYTES // 2 - 2


def test_a_credit_lost_in_a_cut_is_repeated() -> None:
    pair = Pair()
    number = pair.client.open("command", {"id": "c"})
    while room := pair.client.room(number):
        pair.client.send(Write(number, b"x" * min(room, 128 * 1024)))
    pair.up()
    pair.agent.consume(number, WINDOW_BYTES - 1)
    pair.agent.outgoing()  # lost
    pair.cut()
    pair.connect()
    assert pair.client.room(number) == WINDOW_BYTES


def test_a_peer_that_exceeds_its_credit_is_a_protocol_error() -> None:
    pair = Pair()
    number = pair.client.open("command", {"id": "c"})
    pair.up()
    pair.agent.send(Started(number, "c", {}))
    pair.down()
    piece = b"x" * 131072
    for i in range(7):
        pair.client.receive(encode_item(Output(number, 1, piece), 1 + i * len(piece)), 0.0)
    with pytest.raises(ProtocolError, match="credit"):
        pair.client.receive(encode_item(Output(number, 1, piece), 1 + 7 * len(piece)), 0.0)


@pytest.mark.parametrize(
    "message",
    [
        encode_item(Output(1, 1, b"x"), 5),  # an offset after a hole
        encode_item(Exited(9, "c", {}), 0),  # a channel never opened
        encode_item(Closed(1, {}), 0),  # illegal on a command
        encode_item(Run(1, "c", {}), 0),  # a frame that only a client sends
        encode(Ack(1, 99)),  # never sent
        encode(Credit(1, 2**40)),  # far beyond any window
        encode(Hello(1, ID, SECRET, "", 0, 1, {}, 1)),
    ],
)
def test_messages_that_an_agent_may_not_send(message: bytes) -> None:
    pair = Pair()
    pair.client.open("command", {"id": "c"})
    pair.up()
    with pytest.raises(ProtocolError):
        pair.client.receive(message, 0.0)


@pytest.mark.parametrize(
    "message",
    [
        encode_item(Write(1, b"x"), 7),
        encode_item(Write(3, b"x"), 0),
        encode_item(Run(1, "c", {}), 1),  # illegal on a command
        encode_item(Open(1, "command", {}), 1),
        encode_item(Output(1, 1, b"x"), 1),
        encode(Ack(1, 5)),
    ],
)
def test_messages_that_a_client_may_not_send(message: bytes) -> None:
    pair = Pair()
    pair.client.open("command", {"id": "c"})
    pair.up()
    with pytest.raises(ProtocolError):
        pair.agent.receive(message, 0.0)


def test_items_before_the_greeting_are_a_protocol_error() -> None:
    client = ClientSession(ID, SECRET)
    client.connect(0.0)
    with pytest.raises(ProtocolError):
        client.receive(encode_item(Output(1, 1, b"x"), 0), 0.0)


def test_pings_of_a_peer_that_never_reads_do_not_accumulate() -> None:
    pair = Pair()
    for number in range(1000):
        pair.client.receive(encode(Ping(number)), 0.0)
    assert [decode(message)[0] for message in pair.client.outgoing()] == [Pong(999)]


def test_acknowledgements_for_a_peer_that_never_reads_do_not_accumulate() -> None:
    """Only the newest acknowledgement and the newest credit of each channel wait to be sent."""
    pair = Pair()
    channel = pair.client.open("command", {"id": "c"})
    pair.up()
    pair.agent.send(Started(channel, "c", {}))
    pair.down()
    pair.client.outgoing()
    offset, piece = 1, 64 * 1024
    for _ in range(2000):
        pair.client.receive(encode_item(Output(channel, 1, b"x" * piece), offset), 0.0)
        pair.client.consume(channel, piece)
        offset += piece
    waiting = [decode(message)[0] for message in pair.client.outgoing()]
    assert [type(frame) for frame in waiting] == [Credit, Ack]
    assert waiting[1] == Ack(channel, offset)


@pytest.mark.parametrize("received", [{1: 5}, {1: 1 << 20}, {}])
def test_an_impossible_greeting_changes_nothing(received: dict[int, int]) -> None:
    """Offsets inside an item, beyond what was sent, below what was acknowledged: the attached client continues (PROTOCOL §3.4, §9)."""
    pair = Pair()
    channel = pair.open_shell()
    pair.client.send(Run(channel, "c", {}))
    pair.up()
    pair.agent.send(Started(channel, "c", {}))
    pair.down()
    pair.client.tick(1.0)
    pair.up()
    pair.agent.send(Output(channel, 1, b"x" * 10))
    wrong = Hello(1, ID, SECRET, "epoch-1", 1, 2, received, 1)
    with pytest.raises(ProtocolError):
        pair.agent.attach(wrong, pair.now)
    assert (pair.agent.generation, pair.agent.attached) == (1, True)
    pair.down()
    assert [type(event) for event in pair.client.events()] == [Started, Output]


def test_a_channel_number_is_used_once() -> None:
    pair = Pair()
    channel = pair.client.open("command", {"id": "c"})
    pair.up()
    pair.agent.send(Started(channel, "c", {}))
    pair.agent.send(Exited(channel, "c", {}))
    pair.down()
    pair.client.tick(1.0)
    pair.up()
    assert not pair.agent._channels
    with pytest.raises(ProtocolError, match="used before"):
        pair.agent.receive(encode_item(Open(channel, "command", {"id": "c"}), 0), 0.0)
    other = ClientSession(ID, SECRET, take_over=True)
    pair.connect(other)
    assert other.open("command", {"id": "c"}) == channel
    assert [type(event) for event in pair.up(other)] == [Attached, Open], "after a take-over the numbers start again"


def test_unacknowledged_ends_leave_room_for_new_channels() -> None:
    """The agent counts a channel until its last fact is acknowledged; a client with a thousand open at a time stays below the limit."""
    pair = Pair()
    for _ in range(3):
        numbers = [pair.client.open("command", {"id": "x"}) for _ in range(CHANNELS)]
        pair.up()
        for number in numbers:
            pair.agent.send(Failed(number, {"code": "spawn_failed"}))
        pair.down()
    for _ in range(2 * CHANNELS):  # one ends, another begins
        number = pair.client.open("command", {"id": "x"})
        pair.up()
        pair.agent.send(Failed(number, {"code": "spawn_failed"}))
        pair.down()


def test_silence_is_probed_and_then_fatal() -> None:
    pair = Pair()
    client = pair.client
    client.events()
    assert client.deadline() == 5.0
    client.tick(5.0)
    assert decode(client.outgoing()[0])[0] == Ping(1)
    for now in (10.0, 15.0):
        client.tick(now)
    assert client.connected
    client.tick(20.0)
    assert client.events() == [Silent()]
    assert not client.connected


def test_the_answer_of_a_requested_ping_is_reported_once() -> None:
    pair = Pair()
    client = pair.client
    client.events()
    client.tick(5.0)
    pair.up()
    pair.down()
    assert client.events() == [], "nothing waits for the answer to a probe"
    first, second = client.ping(6.0), client.ping(6.0)
    assert client.deadline() == 11.0
    client.receive(encode(Pong(second + 1)), 6.0)
    assert client.events() == [], "no such Ping was sent"
    pair.up()
    pair.down()
    client.receive(encode(Pong(first)), 6.0)
    assert client.events() == [Ponged(second)], "the agent answers the newest Ping alone"
    assert client.deadline() == 11.0


def test_a_probe_behind_a_requested_ping_does_not_hide_its_answer() -> None:
    pair = Pair()
    client = pair.client
    client.events()
    number = client.ping(6.0)
    client.tick(client.deadline() or 0.0)
    pair.up()
    pair.down()
    assert client.events() == [Ponged(number)], "the agent answered the probe alone"


def test_a_ping_is_not_sent_on_the_next_connection() -> None:
    pair = Pair()
    pair.cut()
    pair.client.ping(1.0)
    (message,) = pair.connect()
    assert isinstance(decode(message)[0], Hello)


def test_a_pause_of_this_process_does_not_count_as_silence_of_the_peer() -> None:
    pair = Pair()
    pair.client.events()
    pair.client.tick(60.0)  # the process was stopped for a minute
    assert pair.client.connected
    assert pair.client.events() == []


def test_channels_take_turns() -> None:
    pair = Pair()
    first, second = (pair.client.open("command", {"id": str(i)}) for i in range(2))
    pair.up()
    for number, name in ((first, "0"), (second, "1")):
        pair.agent.send(Started(number, name, {}))
    for _ in range(4):
        pair.agent.send(Output(first, 1, b"x" * 131072))
    pair.agent.send(Output(second, 1, b"short"))
    channels = [decode(m)[0].channel for m in pair.agent.outgoing()]  # type: ignore[union-attr]
    assert channels.index(second) < 2
    assert channels[:4] == [first, second, first, second]


def test_an_ended_channel_sends_nothing_and_ignores_messages_that_arrive_late() -> None:
    pair = Pair()
    number = pair.client.open("command", {"id": "c"})
    pair.up()
    pair.agent.send(Started(number, "c", {}))
    pair.agent.send(Exited(number, "c", {}))
    pair.client.send(Write(number, b"too late"))
    pair.client.send(Close(number))
    assert pair.up() == []
    with pytest.raises(ProtocolError):
        pair.agent.send(Output(number, 1, b"x"))
