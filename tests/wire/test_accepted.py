"""Channels that an agent opens: what a client asked for is accepted, and everything else is a breach (PROTOCOL §7.10–§7.12)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from holdfast_wire.codec import decode, encode, encode_item
from holdfast_wire.errors import HoldfastError, ProtocolError
from holdfast_wire.frames import Accepted, Ack, AnyItem, Closed, Credit, Failed, Hello, Open, Opened, Output, Welcome, Write
from holdfast_wire.limits import ACCEPTED_CHANNELS, ACCEPTED_WINDOW_BYTES, DATA_BYTES, FIRST_ACCEPTED, LISTENERS, UNTAKEN, WINDOW_BYTES
from holdfast_wire.session.agent_session import AgentSession
from holdfast_wire.session.client_session import ClientSession
from holdfast_wire.session.events import Writable

ID, SECRET = "a" * 32, b"s" * 32
NEXT = FIRST_ACCEPTED


def listening(*, accepts: bool = True) -> tuple[ClientSession, int]:
    """An attached client with one listener, and its channel."""
    client = ClientSession(ID, SECRET, accepts=accepts)
    client.connect(0.0)
    client.outgoing()
    client.receive(encode(Welcome(1, "e", 1, False, {}, {})), 0.0)
    listener = client.open("listen", {}) if accepts else client.open("command", {})
    send(client, Opened(listener, {}) if accepts else Failed(listener, {}))
    client.events()
    return client, listener


def send(client: ClientSession, item: AnyItem, offset: int = 0) -> None:
    client.receive(encode_item(item, offset), 0.0)


def pair() -> tuple[ClientSession, AgentSession, int]:
    client, agent = ClientSession(ID, SECRET, accepts=True), AgentSession(ID, SECRET, "e")
    attach(client, agent)
    listener = client.open("listen", {})
    carry(client, agent)
    agent.send(Opened(listener, {}))
    carry(client, agent)
    return client, agent, listener


def attach(client: ClientSession, agent: AgentSession) -> None:
    client.connect(0.0)
    hello, _ = decode(client.outgoing()[0])
    assert isinstance(hello, Hello)
    agent.attach(hello, 0.0)
    carry(client, agent)


def carry(client: ClientSession, agent: AgentSession) -> None:
    """Both ends' messages arrive, until there are none."""
    while client.has_outgoing or agent.has_outgoing:
        for message in client.outgoing():
            agent.receive(message, 0.0)
        for message in agent.outgoing():
            client.receive(message, 0.0)


def _unasked(client: ClientSession, listener: int) -> None:
    send(client, Accepted(NEXT, listener + 1, {}))


def _on_a_command(client: ClientSession, listener: int) -> None:
    command = client.open("command", {"id": "c"})
    send(client, Accepted(NEXT, command, {}))


def _on_another_connection(client: ClientSession, listener: int) -> None:
    send(client, Accepted(NEXT, listener, {}))
    send(client, Accepted(NEXT + 1, NEXT, {}))


def _with_a_clients_number(client: ClientSession, listener: int) -> None:
    send(client, Accepted(listener + 1, listener, {}))


def _on_the_listeners_own_channel(client: ClientSession, listener: int) -> None:
    send(client, Accepted(listener, listener, {}), 1)


def _with_a_number_that_is_over(client: ClientSession, listener: int) -> None:
    send(client, Accepted(NEXT, listener, {}))
    client.take(NEXT)
    send(client, Closed(NEXT, {}), 1)
    send(client, Accepted(NEXT, listener, {}))


def _with_a_number_in_use(client: ClientSession, listener: int) -> None:
    send(client, Accepted(NEXT, listener, {}))
    send(client, Accepted(NEXT, listener, {}), 1)


def _after_the_end_of_the_listener(client: ClientSession, listener: int) -> None:
    send(client, Closed(listener, {}), 1)
    send(client, Accepted(NEXT, listener, {}))


def _other_facts_first(client: ClientSession, listener: int) -> None:
    send(client, Output(NEXT, 1, b"x"))


def _in_the_middle(client: ClientSession, listener: int) -> None:
    send(client, Accepted(NEXT, listener, {}), 1)


def _too_many_that_wait(client: ClientSession, listener: int) -> None:
    for number in range(UNTAKEN + 1):
        send(client, Accepted(NEXT + number, listener, {}))


def _too_many_that_wait_and_ended(client: ClientSession, listener: int) -> None:
    for number in range(UNTAKEN + 1):
        send(client, Accepted(NEXT + number, listener, {}))
        send(client, Closed(NEXT + number, {}), 1)


def _too_many_open(client: ClientSession, listener: int) -> None:
    for number in range(ACCEPTED_CHANNELS + 1):
        send(client, Accepted(NEXT + number, listener, {}))
        client.take(NEXT + number)


def _too_many_bytes_before_it_is_taken(client: ClientSession, listener: int) -> None:
    send(client, Accepted(NEXT, listener, {}))
    send(client, Output(NEXT, 1, b"x" * ACCEPTED_WINDOW_BYTES), 1)


def _facts_of_a_command(client: ClientSession, listener: int) -> None:
    send(client, Accepted(NEXT, listener, {}))
    send(client, Opened(NEXT, {}), 1)


def _output_of_a_listener(client: ClientSession, listener: int) -> None:
    send(client, Output(listener, 1, b"x"), 1)


def _removed_by_a_resume(client: ClientSession, listener: int) -> None:
    send(client, Accepted(NEXT, listener, {}))
    client.disconnected()
    client.connect(0.0)
    client.receive(encode(Welcome(1, "e", 2, True, {listener: 1}, {})), 0.0)


BREACHES = [
    _unasked,
    _on_a_command,
    _on_another_connection,
    _with_a_clients_number,
    _on_the_listeners_own_channel,
    _with_a_number_that_is_over,
    _with_a_number_in_use,
    _after_the_end_of_the_listener,
    _other_facts_first,
    _in_the_middle,
    _too_many_that_wait,
    _too_many_that_wait_and_ended,
    _too_many_open,
    _too_many_bytes_before_it_is_taken,
    _facts_of_a_command,
    _output_of_a_listener,
    _removed_by_a_resume,
]


@pytest.mark.parametrize("breach", BREACHES, ids=lambda breach: breach.__name__.strip("_"))
def test_a_connection_that_was_not_asked_for_is_a_breach(breach: Callable[[ClientSession, int], None]) -> None:
    client, listener = listening()
    with pytest.raises(ProtocolError) as caught:
        breach(client, listener)
    assert caught.value.code == "protocol_error"


def test_a_client_that_did_not_ask_for_connections_gets_none() -> None:
    client, listener = listening(accepts=False)
    with pytest.raises(HoldfastError, match="attached without listening"):
        client.open("listen", {})
    with pytest.raises(ProtocolError):
        send(client, Accepted(NEXT, listener, {}))


def test_an_agent_refuses_a_listener_that_hello_did_not_ask_for() -> None:
    agent = AgentSession(ID, SECRET, "e")
    agent.attach(Hello(1, ID, SECRET, "", 0, 1, {}, 1), 0.0)
    with pytest.raises(ProtocolError, match="did not ask"):
        agent.receive(encode_item(Open(1, "listen", {}), 0), 0.0)


@pytest.mark.parametrize("number", [1, FIRST_ACCEPTED - 1, 2**32])
def test_a_hello_with_a_wrong_number_is_a_breach(number: int) -> None:
    with pytest.raises(ProtocolError):
        AgentSession(ID, SECRET, "e").attach(Hello(1, ID, SECRET, "", 0, 1, {}, 1, False, number), 0.0)


@pytest.mark.parametrize("number", [0, NEXT + 2])
def test_a_resume_with_an_impossible_number_is_a_breach(number: int) -> None:
    _, agent, listener = pair()
    agent.accept(listener, {})
    with pytest.raises(ProtocolError, match="before it is accepted"):
        agent.attach(Hello(1, ID, SECRET, "e", 1, 2, {listener: 1, NEXT: 1}, 2, False, number), 0.0)


def test_a_client_may_not_open_a_channel_with_an_agents_number() -> None:
    _, agent, _ = pair()
    with pytest.raises(ProtocolError):
        agent.receive(encode_item(Open(NEXT, "command", {}), 0), 0.0)


def test_a_session_has_a_bounded_number_of_listeners() -> None:
    client, agent, _ = pair()
    for _ in range(LISTENERS - 1):
        client.open("listen", {})
    with pytest.raises(HoldfastError, match="at most 16"):
        client.open("listen", {})
    carry(client, agent)
    with pytest.raises(ProtocolError, match="at most 16"):
        agent.receive(encode_item(Open(100, "listen", {}), 0), 0.0)


def test_connections_that_wait_are_bounded_and_go_on_as_they_are_taken() -> None:
    client, agent, listener = pair()
    numbers = [agent.accept(listener, {}) for _ in range(UNTAKEN)]
    assert not agent.may_accept(listener)
    with pytest.raises(HoldfastError, match="accepts no connection now"):
        agent.accept(listener, {})
    agent.send(Closed(numbers[1], {}))
    carry(client, agent)
    client.tick(10.0)
    carry(client, agent)
    assert not agent.may_accept(listener), "a connection that ended before it was taken counts until it is taken"
    agent.events()
    for number in numbers[:2]:
        client.take(number)
        carry(client, agent)
        assert Writable(listener) in agent.events()
    assert [agent.accept(listener, {}) for _ in range(2)] == [numbers[-1] + 1, numbers[-1] + 2]
    assert not agent.may_accept(listener)


def test_other_listeners_go_on_when_the_session_has_room_again() -> None:
    client, agent, listener = pair()
    other = client.open("listen", {})
    carry(client, agent)
    agent.send(Opened(other, {}))
    numbers = []
    for _ in range(ACCEPTED_CHANNELS):
        numbers.append(agent.accept(listener, {}))
        carry(client, agent)
        client.take(numbers[-1])
        carry(client, agent)
    assert not agent.may_accept(other)
    agent.events()
    agent.send(Closed(numbers[0], {}))
    carry(client, agent)
    client.tick(10.0)
    carry(client, agent)
    assert Writable(other) in agent.events()
    assert agent.may_accept(other)
    assert client.open("command", {"id": "c"}), "connections do not count among the channels of the client"


def test_the_first_bytes_need_no_answer_and_the_others_wait_until_it_is_taken() -> None:
    client, agent, listener = pair()
    number = agent.accept(listener, {})
    room = agent.room(number)
    assert room == ACCEPTED_WINDOW_BYTES - 1
    agent.send(Output(number, 1, b"x" * room))
    carry(client, agent)
    assert agent.room(number) == 0
    client.take(number)
    carry(client, agent)
    assert agent.room(number) > WINDOW_BYTES - ACCEPTED_WINDOW_BYTES - DATA_BYTES
    client.send(Write(number, b"y" * 10))
    carry(client, agent)
    assert any(isinstance(event, Write) and event.data == b"y" * 10 for event in agent.events())


def test_a_lost_acknowledgement_of_the_end_is_settled_by_the_next_hello() -> None:
    client, agent, listener = pair()
    number = agent.accept(listener, {})
    carry(client, agent)
    client.take(number)
    agent.send(Closed(number, {}))
    carry(client, agent)
    client.tick(10.0)
    client.outgoing()  # the acknowledgement is lost
    assert number in agent._channels
    attach(client, agent)
    assert number not in agent._channels
    assert (agent._accepted, agent._untaken, client._accepted, client._untaken) == (0, {}, 0, {})


def test_credit_for_a_connection_that_is_over_is_ignored() -> None:
    _, agent, listener = pair()
    number = agent.accept(listener, {})
    agent.receive(encode(Credit(number, WINDOW_BYTES)), 0.0)
    agent.receive(encode(Credit(number, WINDOW_BYTES + 1)), 0.0)
    assert agent._untaken == {}
    agent.send(Closed(number, {}))
    agent.receive(encode(Ack(number, 2)), 0.0)
    agent.receive(encode(Credit(number, WINDOW_BYTES + 2)), 0.0)
    assert (agent._accepted, agent._untaken) == (0, {})
