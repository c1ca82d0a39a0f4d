"""The channel kind ``watch``: events for changes in a directory or a directory tree.

``watched_tree`` produces the events; used through ``transfers``. Little is read ahead of the client: while it reads nothing, nothing is
read from the kernel, whose queue then overflows and reports that.
"""

from __future__ import annotations

from typing import ClassVar

from holdfast_wire.frames import Closed
from holdfast_wire.limits import DATA_BYTES

from session_agent.agent.context import AgentContext
from session_agent.agent.request.params import boolean
from session_agent.agent.request.paths import absolute, path_param
from session_agent.agent.session.channels import Channel, Handler

from .file_user import acting
from .transfers import Outgoing
from .watched_tree import watch


def open_watch(context: AgentContext, channel: Channel) -> Handler:
    """``watch {path, recursive?: false, user?}``: Opened{directories}, Output(1) = event maps, back to back; Closed{} when it is gone."""
    params = channel.params
    path = absolute(context.workdir, path_param(params))
    events = watch(path, boolean(params, "recursive", False))
    return Watching(channel, events, path, context, acting(context, params)[0])


class Watching(Outgoing):
    """Sends events until the client closes the channel."""

    AHEAD_BYTES: ClassVar = DATA_BYTES

    def close(self, detach: bool) -> None:
        self._abort(Closed(self._channel.number, {}))
