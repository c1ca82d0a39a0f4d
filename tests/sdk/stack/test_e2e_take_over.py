"""Taking over a session on the real stack, on both APIs: the old client is fenced, running commands continue."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from holdfast import AuthenticationError, InvalidArgumentError, SessionFencedError, SessionLostError
from holdfast._session_token import SessionToken

from tests.sdk.support.requirements import STACK

pytestmark = STACK


async def test_commands_and_shells_continue_with_the_new_client(live: Any, stack: Any, face: Any) -> None:
    shell = await live.shell("work")
    await shell.run("X=kept; cd /tmp")
    waiting = asyncio.create_task(shell.run("until test -e /tmp/go; do sleep 0.05; done; echo in-shell", command_id="in-shell"))
    process = await live.start("echo before; until test -e /tmp/go; do sleep 0.05; done; echo after", command_id="one")
    assert (await process.read(60)).data == b"before\n"
    token = await live.session_token()

    other = face.client(stack.url, stack.key)
    taken = await other.take_over(token)
    assert taken.id == live.id
    with pytest.raises(SessionFencedError):
        await asyncio.wait_for(waiting, 60)
    with pytest.raises(SessionFencedError):
        await process.wait(60)
    for late in (live.exec("true"), live.files.read("/etc/passwd"), live.shell("work"), shell.run("true"), live.session_token()):
        with pytest.raises(SessionFencedError):
            await late

    followed = await taken.follow("one")
    in_shell = await taken.follow("in-shell")
    await taken.files.write("/tmp/go", b"")
    result = await followed.wait(60)
    assert (result.exit_code, result.stdout) == (0, "before\nafter\n")
    assert (await in_shell.wait(60)).stdout == "in-shell\n"
    again = await taken.shell("work")
    assert not again.created
    assert (await again.run("echo $X; pwd")).stdout == "kept\n/tmp\n"
    with pytest.raises(SessionFencedError):  # the old client does not attach again by itself: the newer one is still attached
        await live.exec("true")
    assert (await taken.exec("echo mine")).stdout == "mine\n"
    await other.close()


async def test_a_session_can_be_taken_over_and_back(live: Any, client: Any, stack: Any, face: Any) -> None:
    token = await live.session_token()
    other = face.client(stack.url, stack.key)
    taken = await other.take_over(token)
    back = await client.take_over(await taken.session_token())
    assert (await back.exec("echo back")).stdout == "back\n"
    with pytest.raises(SessionFencedError):
        await taken.exec("true")
    await back.close()
    await other.close()


async def test_the_old_client_does_not_delete_a_sandbox_that_was_taken_over(client: Any, stack: Any, face: Any) -> None:
    other = face.client(stack.url, stack.key)
    async with await client.create_sandbox("host", memory="256Mi") as sandbox:
        taken = await other.take_over(await sandbox.session_token())
        with pytest.raises(SessionFencedError):
            await sandbox.exec("true")
        await sandbox.close()
        with pytest.raises(SessionFencedError):
            await sandbox.exec("true")
    assert (await taken.exec("echo alive")).stdout == "alive\n"
    assert await taken.delete()
    await other.close()


async def test_the_new_client_sends_the_heartbeats(client: Any, stack: Any, face: Any) -> None:
    other = face.client(stack.url, stack.key)
    async with await client.create_sandbox("host", memory="256Mi", heartbeat_timeout_s=60) as sandbox:
        token = await sandbox.session_token()
        assert SessionToken.read(token).heartbeat_s == 20
        taken = await other.take_over(token)
        assert SessionToken.read(await taken.session_token()).heartbeat_s == 20
        assert await taken.delete()
    await other.close()


async def test_bad_tokens(live: Any, client: Any) -> None:
    token = await live.session_token()
    for bad in ("", "no token", "hfs_", token[:-4], token + "!", "x" + token, token.encode(), None, "hfs_" + "A" * 4000):
        with pytest.raises(InvalidArgumentError) as wrong:
            await client.take_over(bad)
        assert token[4:] not in str(wrong.value)
    known = SessionToken.read(token)
    assert known.secret.hex() not in repr(known)
    assert repr(known.secret) not in repr(known)
    forged = SessionToken(known.sandbox_id, known.session_id, bytes(32), known.agent_epoch)
    with pytest.raises(AuthenticationError):
        await client.take_over(forged.write())
    assert (await live.exec("echo unharmed")).stdout == "unharmed\n"
    for lost in (
        SessionToken(known.sandbox_id, "f" * 32, known.secret, known.agent_epoch),
        SessionToken(known.sandbox_id, known.session_id, known.secret, "another epoch"),
    ):
        with pytest.raises(SessionLostError):
            await client.take_over(lost.write())


async def test_a_terminal_that_was_replayed_ends_with_a_result(live: Any) -> None:
    """A second client first gets a redrawn screen, so its bytes are not those that the agent counted."""
    command = ["sh", "-c", "seq 100000; echo shown; read line; echo bye; exit 3"]
    first = await live.terminal(command, name="screen", max_output_bytes=0)
    seen = b""
    while b"shown" not in seen:
        seen = seen[-16:] + (await first.read(60)).data
    await first.detach()
    again = await live.terminal(name="screen")
    assert not again.created
    await again.write("\n")
    result = await again.wait(60)
    assert result.exit_code == 3
    assert result.stdout_bytes.startswith(b"\x1bc")
    assert result.stdout_bytes.rstrip().endswith(b"bye")
    assert len(result.stdout_bytes) < 300_000
