"""langsmith-sdk #3021: live output was dropped after a reconnect, and the result still said exit code 0.

Their output callbacks belonged to one connection; the next one had none. A user lost 3 516 of 29 297 records on two runs of three,
without an error. Here: that many records, read live, while the connection is cut again and again in the middle of them.
"""

from __future__ import annotations

from tests.regressions.conftest import Link
from tests.support.requires import requires

pytestmark = [requires("namespaces", "redis", "bash")]

RECORDS = 29_297
RECORD = "%07d " + "r" * 120 + "\\n"  # 3.8 MB in all: several windows of credit, so that the cuts fall into the stream
RECORDS_PER_CUT = RECORDS // 8


def test_live_output_of_a_shell_survives_reconnects(link: Link) -> None:
    with link.sandbox.shell() as shell:
        stream = shell.stream(f"seq 1 {RECORDS} | xargs -n 1000 printf '{RECORD}'; exit_code() {{ return 5; }}; exit_code")
        text, cuts = b"", 0
        for chunk in stream:
            text += chunk.data
            if len(text) // 129 > (cuts + 1) * RECORDS_PER_CUT:
                cuts += link.proxy.cut_all()
        check(text, cuts)
        assert stream.result.exit_code == 5
        assert stream.result.streams[1].dropped == 0


def test_live_output_of_a_process_survives_reconnects(link: Link) -> None:
    with link.sandbox.start(f"seq 1 {RECORDS} | xargs -n 1000 printf '{RECORD}'") as process:
        text, cuts = b"", 0
        for chunk in process:
            text += chunk.data
            if len(text) // 129 > (cuts + 1) * RECORDS_PER_CUT:
                cuts += link.proxy.cut_all()
        check(text, cuts)
        assert process.wait().exit_code == 0


def check(text: bytes, cuts: int) -> None:
    assert cuts >= 5
    numbers = [int(line[:7]) for line in text.splitlines()]
    assert numbers == list(range(1, RECORDS + 1))
