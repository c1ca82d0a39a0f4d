"""The storage of the fake API server: objects with versions, a bounded log of their changes, selectors and patches.

Owns the rules of Kubernetes that the runtime relies on: names are unique, every write has a new resource version, preconditions are
checked, a deletion with a grace period is announced before it is done, a log that is too short gives "Expired".
"""

from __future__ import annotations

import copy
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

Object = dict[str, Any]


class RefusedError(Exception):
    """An answer that is not 2xx."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log. ``before`` decides which event a watch with a selector sends."""

    version: int
    kind: str
    object: Object
    before: Object | None


class Store:
    """Objects of one resource in one namespace."""

    def __init__(self, resource: str, history: int = 4096) -> None:
        self.resource = resource
        self.version = 1000
        self.log: deque[Entry] = deque(maxlen=history)
        self.on_write: list[Callable[[Entry], None]] = []
        self._objects: dict[str, Object] = {}
        self._oldest = 1000
        """The oldest version from which a watch may continue."""

    def resize(self, history: int) -> None:
        self.log = deque(self.log, history)

    def names(self) -> list[str]:
        return list(self._objects)

    def get(self, name: str) -> Object:
        found = self._objects.get(name)
        if found is None:
            raise RefusedError(404, "NotFound", f'{self.resource} "{name}" not found')
        return found

    def all(self, selector: str = "") -> list[Object]:
        return [one for _, one in sorted(self._objects.items()) if matches(selector, one)]

    def create(self, body: Object) -> Object:
        name = body["metadata"]["name"]
        if name in self._objects:
            raise RefusedError(409, "AlreadyExists", f'{self.resource} "{name}" already exists')
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": stamp()}
        made["metadata"].setdefault("labels", {})
        made["metadata"].setdefault("annotations", {})
        return self._write("ADDED", made, None)

    def update(self, name: str, change: Callable[[Object], None]) -> Object:
        before = self.get(name)
        after = copy.deepcopy(before)
        change(after)
        return before if after == before else self._write("MODIFIED", after, before)

    def merge(self, name: str, patch: Object) -> Object:
        wanted, found = (patch.get("metadata") or {}).get("uid"), self.get(name)["metadata"]["uid"]
        if wanted not in (None, found):
            raise RefusedError(409, "Conflict", f"the UID in the precondition ({wanted}) does not match the UID in record ({found})")
        return self.update(name, lambda body: _merge(body, patch))

    def json_patch(self, name: str, operations: list[dict[str, Any]]) -> Object:
        return self.update(name, lambda body: _apply(body, operations))

    def delete(self, name: str, options: Object) -> Object:
        """With a grace period the deletion is announced; without one it is done at once."""
        found = self.get(name)
        for key, wanted in (options.get("preconditions") or {}).items():
            if str(found["metadata"].get(key)) != wanted:
                raise RefusedError(409, "Conflict", f"Precondition failed: {key} in precondition: {wanted}")
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = (found.get("spec") or {}).get("terminationGracePeriodSeconds", 0)
        if self.resource != "pods":
            return self.remove(name)
        over = (found.get("status") or {}).get("phase") in ("Failed", "Succeeded")
        if not grace or over or not (found.get("spec") or {}).get("nodeName"):
            return self.remove(name, grace=0)
        at = stamp(grace)
        mark = {"deletionTimestamp": found["metadata"].get("deletionTimestamp") or at, "deletionGracePeriodSeconds": grace}
        return self.update(name, lambda body: body["metadata"].update(mark))

    def remove(self, name: str, *, grace: int | None = None) -> Object:
        """Remove an object at once. ``grace`` is the grace period in its event: 0 for every deleted pod, whatever the delete had."""
        before = self.get(name)
        del self._objects[name]
        last = copy.deepcopy(before)
        if grace is not None:
            last["metadata"]["deletionTimestamp"] = last["metadata"].get("deletionTimestamp") or stamp()
            last["metadata"]["deletionGracePeriodSeconds"] = grace
        return self._write("DELETED", last, before, keep=False)

    def since(self, version: int) -> list[Entry]:
        if version < self._oldest or (len(self.log) == self.log.maxlen and self.log[0].version > version + 1):
            raise RefusedError(410, "Expired", f"too old resource version: {version} ({self._oldest})")
        return [entry for entry in self.log if entry.version > version]

    def forget_history(self) -> None:
        """Simulate a compaction: no watch can continue from its version."""
        self.log.clear()
        self.version += 1
        self._oldest = self.version

    def _write(self, kind: str, body: Object, before: Object | None, *, keep: bool = True) -> Object:
        self.version += 1
        body["metadata"]["resourceVersion"] = str(self.version)
        if keep:
            self._objects[body["metadata"]["name"]] = body
        entry = Entry(self.version, kind, body, before)
        self.log.append(entry)
        for listener in self.on_write:
            listener(entry)
        return body


def seen_through(entry: Entry, selector: str) -> str | None:
    """The type of the event that a watch with this selector sends for the entry; None where it sends none."""
    now, was = matches(selector, entry.object), entry.before is not None and matches(selector, entry.before)
    if entry.kind == "DELETED":
        return "DELETED" if was else None
    if now:
        return "MODIFIED" if was else "ADDED"
    return "DELETED" if was else None


def matches(selector: str, body: Object) -> bool:
    labels = body["metadata"].get("labels") or {}
    for part in filter(None, selector.split(",")):
        name, equals, value = part.partition("=")
        if (labels.get(name) != value.lstrip("=")) if equals else (name not in labels):
            return False
    return True


def stamp(later_s: float = 0.0) -> str:
    return (datetime.now(UTC) + timedelta(seconds=later_s)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _merge(body: Object, patch: Object) -> None:
    for name, value in patch.items():
        if value is None:
            body.pop(name, None)
        elif isinstance(value, dict):
            body[name] = body.get(name) or {}
            _merge(body[name], value)
        else:
            body[name] = value


def _apply(body: Object, operations: list[dict[str, Any]]) -> None:
    for one in operations:
        *path, last = [part.replace("~1", "/").replace("~0", "~") for part in one["path"].split("/")[1:]]
        at = body
        for part in path:
            at = at.get(part)  # type: ignore[assignment]
            if not isinstance(at, dict):
                raise RefusedError(422, "Invalid", "the server rejected our request due to an error in our request")
        op = one["op"]
        if (op in ("replace", "remove") and last not in at) or (op == "test" and at.get(last) != one["value"]):
            raise RefusedError(422, "Invalid", "the server rejected our request due to an error in our request")
        if op == "remove":
            del at[last]
        elif op in ("add", "replace"):
            at[last] = one["value"]
