"""``key create``, ``list``, ``rotate`` and ``revoke``, for operators.

A new key is the only thing that ``create`` and ``rotate`` print on standard output, so that a script can take it.
"""

from __future__ import annotations

import dataclasses
import time

from holdfast import KeyInfo, NewKey, SandboxClient
from holdfast.cli.command_line import Arguments, UsageError
from holdfast.cli.output import age, print_json, print_line, print_note, table


def create(arguments: Arguments) -> None:
    if not arguments.owner:
        raise UsageError("no owner is named", hint="holdfast key create --owner OWNER")
    scopes = [scope.strip() for scope in (arguments.scopes or "").split(",") if scope.strip()]
    with SandboxClient() as client:
        made = client.keys.create(
            arguments.owner, project=arguments.project, scopes=scopes, expires_s=arguments.expires, note=arguments.note or ""
        )
    _show(made, as_json=arguments.json)


def rotate(arguments: Arguments) -> None:
    with SandboxClient() as client:
        _show(client.keys.rotate(arguments.key_id, grace_s=arguments.grace or None), as_json=arguments.json)


def list_(arguments: Arguments) -> None:
    with SandboxClient() as client:
        found = client.keys.list(owner=arguments.owner, project=arguments.project)
    found = [one for one in found if one.valid or arguments.all]
    if arguments.json:
        print_json([dataclasses.asdict(one) for one in found])
    elif arguments.quiet:
        for one in found:
            print_line(one.key_id)
    else:
        now = time.time()
        table(("KEY", "OWNER", "PROJECT", "SCOPES", "ENDS", "LAST USE", "NOTE"), (_row(one, now) for one in found))


def revoke(arguments: Arguments) -> None:
    with SandboxClient() as client:
        for key_id in arguments.key_id:
            client.keys.revoke(key_id)
            if not arguments.json:
                print_line(key_id)
    if arguments.json:
        print_json({"revoked": arguments.key_id})


def _show(made: NewKey, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(made.info) | {"key": made.key})
        return
    print_line(made.key)
    of = f"{made.info.owner}{f' in {made.info.project}' if made.info.project else ''}"
    print_note(f"{made.info.key_id}, a key of {of}: it is not shown again")


def _row(one: KeyInfo, now: float) -> tuple[str, ...]:
    if one.revoked_at is not None:
        ends = "revoked"
    elif one.expires_at is None:
        ends = "never"
    else:
        ends = f"in {age(now, one.expires_at)}" if one.expires_at > now else "expired"
    used = "" if one.used_at is None else f"{age(one.used_at, now)} ago"
    note = one.note or ("in the keys file" if one.in_file else "")
    return one.key_id, one.owner, one.project or "", ",".join(one.scopes), ends, used, note
