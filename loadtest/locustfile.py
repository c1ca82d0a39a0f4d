"""The file for ``locust -f``: the user classes, and the listeners that begin, judge and end a run.

It only imports them. A shape is a second file: ``-f loadtest/locustfile.py,loadtest/shapefile.py --shape spike``.
"""

from __future__ import annotations

from loadtest import listeners  # noqa: F401  registers them
from loadtest.users.churn import ChurnUser
from loadtest.users.episode import EpisodeUser
from loadtest.users.file_mover import FileMoverUser
from loadtest.users.one_off import OneOffUser
from loadtest.users.orchard import OrchardUser
from loadtest.users.slow_reader import SlowReaderUser
from loadtest.users.typist import TypistUser

__all__ = ["ChurnUser", "EpisodeUser", "FileMoverUser", "OneOffUser", "OrchardUser", "SlowReaderUser", "TypistUser"]
