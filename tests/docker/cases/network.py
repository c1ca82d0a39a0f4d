"""The internet, from both sides through slirp4netns: packages from their registries, as people install them.

Runs only where this machine reaches the registries itself (`reference.why_no_network`).
"""

from __future__ import annotations

from tests.docker.case import case
from tests.docker.recipe import SUITE
from tests.support.mirror import host, mirror

_HOST = host()[0]
_RELEASE = f"{mirror()}/dists/{SUITE}/Release"
_MIRROR = f"echo 'deb {mirror()} {SUITE} main' > /etc/apt/sources.list"
_INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0"

CASES = (
    case("apt-get-update", f"{_MIRROR}; apt-get update -qq && ls /var/lib/apt/lists | grep -c bookworm_main", network=True, deadline_s=120),
    case(
        "apt-get-install",
        f"{_MIRROR}; apt-get update -qq && {_INSTALL} vsftpd >/dev/null 2>&1 && stat -c '%U %G %a' /srv/ftp && id -un ftp",
        network=True,
        deadline_s=120,
    ),
    case(
        "apt-get-reinstalls-nginx-and-starts-it",
        f"{_MIRROR}; apt-get update -qq && {_INSTALL} --reinstall nginx-light >/dev/null 2>&1; nginx; sleep 0.5",
        "curl -s -o /dev/null -w '%{http_code}' localhost",
        network=True,
        deadline_s=120,
    ),
    case(
        "pip-install",
        "python3 -m venv /tmp/v && /tmp/v/bin/pip install -q --disable-pip-version-check six 2>/dev/null; /tmp/v/bin/python -c 'import six; print(six.PY3)'",
        network=True,
        deadline_s=120,
    ),
    case(
        "pip-install-by-a-user",
        "python3 -m venv /tmp/v && /tmp/v/bin/pip install -q --disable-pip-version-check six 2>/dev/null; stat -c %U /tmp/v/lib/python3*/site-packages/six.py",
        user="alice",
        network=True,
        deadline_s=120,
    ),
    case("names-are-resolved", f"getent hosts {_HOST} | wc -l", network=True),
    case("http-and-redirects", f"curl -s -o /dev/null -w '%{{http_code}}' {_RELEASE}", network=True),
    case("wget", f"wget -q -O /tmp/r {_RELEASE} && grep -c ^Suite /tmp/r", network=True),
    case(
        "outgoing-source-port-is-free",
        f'python3 -c "import socket; s=socket.create_connection({host()!r}); print(s.getpeername()[1])"',
        network=True,
    ),
    case("interfaces", "ls /sys/class/net | sort", network=True),
    case("ping-of-the-gateway", "ping -c1 -W3 10.0.2.2 >/dev/null; echo $?", network=True),
    case("routes-cannot-be-changed", "ip route del default", network=True, refused=True),
    case("interface-cannot-be-changed", "ip link set tap0 down", network=True, refused=True),
    case("resolv-conf-can-be-changed", f"echo 'options timeout:1' >> /etc/resolv.conf; getent hosts {_HOST} | wc -l", network=True),
)
