"""The zygote, from which agents are forked, maps no library that agents do not use, so the memory they share stays small."""

from __future__ import annotations

import json
import os
import subprocess
import sys

SCRIPT = """
from session_agent.node.zygote.__main__ import leave_out
leave_out()
import json, sys
from session_agent.node.zygote import forking as zygote
zygote._preload()
entry = zygote.load_entry("session_agent.agent.startup.server:serve_forked")
zygote.load_warm_up("session_agent.agent.startup.server:serve_forked")()
from session_agent.agent.session.connection import apply_mask
mapped = {line.split()[-1].rpartition("/")[2] for line in open("/proc/self/maps") if "/" in line}
modules = [name for name, module in sys.modules.items() if module]
print(json.dumps([modules, sorted(mapped), apply_mask(b"ab", b"\\1\\2\\3\\4").hex(), type(apply_mask).__name__]))
"""

COMPILES = """
from session_agent.node.zygote.__main__ import leave_out
leave_out()
import sys
from session_agent.node.zygote import forking as zygote
zygote._preload()
zygote.load_warm_up("session_agent.agent.startup.server:serve_forked")()
from session_agent.agent.settings import AgentSettings
compiled = []
sys.addaudithook(lambda event, args: compiled.append(args) if event == "compile" else None)
AgentSettings.from_config({"sandbox_id": "one", "token": "00"})
print(len(compiled))
"""

WAITS = """
import socket
from session_agent.node.zygote.forking import _receive
node, spare = socket.socketpair()
spare.sendall(b"prepared")
node.close()
_receive(spare)
"""

FORKS = """
from session_agent.node.zygote.__main__ import leave_out
leave_out()
import os, random, threading
os.register_at_fork(after_in_child=lambda: os.write(1, b"hook "))
for _ in range(2):
    if os.fork() == 0:
        os.write(1, f"{random.random()} ".encode())
        os._exit(0)
    os.wait()
threading.Thread(target=lambda: os.write(1, b"thread")).start()
"""


def test_agents_map_no_library_that_they_do_not_use() -> None:
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, check=True, text=True)
    modules, mapped, masked, kind = json.loads(done.stdout)
    assert not {"_ssl", "_lzma", "_bz2", "csv", "email", "importlib.metadata", "zipfile"} & set(modules)
    assert not [name for name in mapped if name.startswith(("libssl", "liblzma", "libbz2", "_csv"))]
    assert {"session_agent.agent.files.archives.download", "session_agent.agent.shell.shell"} <= set(modules)
    assert (masked, kind) == ("6060", "builtin_function_or_method")


def test_agents_compile_nothing_to_read_their_settings() -> None:
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", COMPILES], env=environment, capture_output=True, check=True, text=True)
    assert done.stdout == "0\n"


def test_each_agent_has_its_own_random_numbers_and_runs_no_other_fork_hook() -> None:
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", FORKS], env=environment, capture_output=True, check=True, text=True)
    first, second, thread = done.stdout.split()
    assert first != second
    assert thread == "thread"


def test_a_spare_ends_silently_with_its_node() -> None:
    """The node may end before it has read what a new spare has sent: then the spare's connection is reset."""
    done = subprocess.run([sys.executable, "-c", WAITS], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (72, "")
