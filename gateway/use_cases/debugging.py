"""What a replica does at this moment, for an operator who looks for the reason of a fault.

Owns which facts these are: tasks with where they wait, queues, connections, memory. Nothing of a request or a sandbox but names of tasks,
and no setting, since settings hold secrets.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
import threading
import time
from collections import Counter
from typing import Any, Final

from gateway.turns import turns

from .service import Gateway

_MOST_TASKS: Final = 200


def snapshot(gateway: Gateway) -> dict[str, Any]:
    """See the module."""
    tasks = asyncio.all_tasks()
    places = Counter(_place(task) for task in tasks)
    return {
        "replica": gateway.settings.replica,
        "python": sys.version.split()[0],
        "uptime_s": round(time.monotonic() - gateway.started_at, 1),
        "memory": {"peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "objects": len(gc.get_objects())},
        "cpu_s": round(time.process_time(), 3),
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "tasks": {"count": len(tasks), "waiting_at": dict(places.most_common(_MOST_TASKS))},
        "background": sorted(task.get_name() for task in tasks if not task.get_name().startswith("Task-"))[:_MOST_TASKS],
        "queues": {
            "creates_waiting": gateway.admission.waiting,
            "creates_running": gateway.admission.running,
            "dials_waiting": gateway.dials.waiting,
            "turns_waiting": turns().waiting,
            "audit_waiting": gateway.audit.waiting,
        },
        "sessions": len(gateway.attached),
        "connections_to_agents": len(gateway.agents),
        "draining": gateway.attached.draining,
    }


def _place(task: asyncio.Task[Any]) -> str:
    """The innermost line at which a task waits: module and line, such as ``gateway.audit.log:107``."""
    found = ""
    coroutine: Any = task.get_coro()
    while coroutine is not None:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is not None:
            found = f"{frame.f_globals.get('__name__', '')}:{frame.f_lineno}"
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return found or "running"
