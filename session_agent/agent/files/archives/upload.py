"""The channel kind ``upload``: extracts an untrusted tar stream without leaving its destination.

Owns the parameters, the owner of what is created, and the typed errors; ``holdfast_wire.archives.extraction`` decides where members go.
Set-user-id, set-group-id and sticky bits are removed unless requested. Used through ``transfers``.
"""

from __future__ import annotations

import os

from holdfast_wire.archives.extraction import Rules
from holdfast_wire.archives.extraction import extract as extraction
from holdfast_wire.archives.tar import TarLimits
from holdfast_wire.errors import HoldfastError

from session_agent.agent.context import AgentContext
from session_agent.agent.files.file_user import Owner, acting, give
from session_agent.agent.files.transfers import Incoming, Sink, noted
from session_agent.agent.files.write import make_parents
from session_agent.agent.request.params import boolean, integer
from session_agent.agent.request.paths import absolute, os_failure, path_param
from session_agent.agent.session.channels import Channel, Handler


def open_upload(context: AgentContext, channel: Channel) -> Handler:
    """``upload {path, user?, owners?, merge?, special_bits?, …}`` + a tar: Opened{}, Closed{entries, bytes, skipped, …}.

    ``owners``: what is created gets the owners in the archive, or the upload fails; a request with ``user`` cannot ask for it.
    ``merge``: directories that exist keep their owner, permissions and time.
    """
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    bounds = TarLimits()
    limits = TarLimits(
        entries=integer(params, "limit_entries", bounds.entries, least=1),
        size_bytes=integer(params, "limit_bytes", bounds.size_bytes),
    )
    actor, owner = acting(context, params)
    owners = boolean(params, "owners", False)
    if owners and params.get("user") is not None:
        raise HoldfastError("invalid_argument", "owners cannot be combined with user", hint="leave out one of the two")
    special, merge = boolean(params, "special_bits", False), boolean(params, "merge", False)
    sink = extract(path, limits, owner=None if owners else owner, owners=owners, special_bits=special, merge=merge)
    return Incoming(channel, noted(context, "upload", path, sink), path, actor)


class _Merging(Rules):
    changes_existing_directories = False


def extract(
    path: str, limits: TarLimits, *, owner: Owner = None, owners: bool = False, special_bits: bool = False, merge: bool = False
) -> Sink:
    """Extract into the directory ``path``, which is created if it does not exist.

    ``owner``: of everything that is created; ``owners``: those of the archive instead; ``special_bits``: keep set-user-id, set-group-id and
    sticky bits; ``merge``: existing directories are not changed.
    """
    make_parents(os.path.normpath(path) if ".." not in path else path.rstrip("/"), owner)
    kind = _Merging if merge else Rules
    rules = kind(lambda target, directory: give(target, owner, directory=directory), 0o7777 if special_bits else 0o777)
    rules.keeps_owners = owners
    try:
        return (yield from extraction(path, limits, rules))
    except OSError as error:
        progress = getattr(error, "progress", {"entries": 0, "entry": ""})
        typed = os_failure(error, f"{path.rstrip('/')}/{progress['entry']}")
        typed.message = f"{typed.message} (after {progress['entries']} entries)"
        typed.detail = typed.detail | progress
        raise typed from None
