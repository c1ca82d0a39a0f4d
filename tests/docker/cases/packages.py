"""Packages: apt, dpkg, pip, from a repository and from files in the image, without a network."""

from __future__ import annotations

from tests.docker.case import case, last_line, nothing

_UPDATE = "apt-get update -qq"
_INSTALL = "DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0"

CASES = (
    case("apt-get-update", "apt-get update 2>&1 | grep -c '^[EW]:'", exits=1),
    case("apt-update", "apt update >/dev/null 2>&1; echo $?; ls /var/lib/apt/lists | grep -c Packages"),
    case("apt-get-install", f"{_UPDATE} && {_INSTALL} hello >/dev/null 2>&1 && hello"),
    case("apt-get-install-twice", f"{_UPDATE} && {_INSTALL} hello cowsay >/dev/null 2>&1", "hello && /usr/games/cowsay moo | grep -c moo"),
    case(
        "apt-install-a-service",
        f"{_UPDATE} && {_INSTALL} lighttpd >/dev/null 2>&1; stat -c '%U %G' /var/log/lighttpd /var/cache/lighttpd",
        "lighttpd -t -f /etc/lighttpd/lighttpd.conf",
    ),
    case("apt-sandbox-user", f"{_UPDATE} && stat -c '%U %a' /var/lib/apt/lists/partial"),
    case(
        "apt-remove-and-purge",
        f"{_UPDATE} && {_INSTALL} hello >/dev/null 2>&1 && apt-get purge -y -qq hello >/dev/null 2>&1; command -v hello || echo gone",
    ),
    case("apt-get-download", f"{_UPDATE} && cd /tmp && apt-get download -qq hello && ls *.deb | cut -d_ -f1"),
    case("apt-get-as-a-user", "apt-get install -y hello", user="alice", refused=True, normalize=nothing),
    case("apt-cache-policy", f"{_UPDATE} && apt-cache policy hello | grep -c Candidate"),
    case("apt-mark", "apt-mark hold jq >/dev/null && apt-mark showhold && apt-mark unhold jq >/dev/null"),
    case("apt-by-sudo", f"sudo -n sh -c '{_UPDATE} && {_INSTALL} sl >/dev/null 2>&1'; ls /usr/games/sl", user="alice"),
    case("dpkg-install-a-file", "dpkg -i /srv/apt/hello_*.deb >/dev/null && hello | head -1"),
    case(
        "dpkg-unpack-and-configure",
        "dpkg --unpack /srv/apt/tree_*.deb >/dev/null && dpkg --configure tree >/dev/null && dpkg -s tree | grep ^Status",
    ),
    case(
        "dpkg-build-and-install",
        "mkdir -p /tmp/p/DEBIAN /tmp/p/opt/p && printf 'Package: p\\nVersion: 1\\nArchitecture: all\\nMaintainer: x <x@x>\\nDescription: x\\n' > /tmp/p/DEBIAN/control && echo hi > /tmp/p/opt/p/f && chown -R alice:crew /tmp/p/opt/p/f && dpkg-deb -b /tmp/p /tmp/p.deb >/dev/null && dpkg -i /tmp/p.deb >/dev/null && stat -c '%U %G' /opt/p/f",
    ),
    case("dpkg-statoverride", "dpkg-statoverride --update --add alice crew 4750 /usr/bin/jq && stat -c '%U %G %a' /usr/bin/jq"),
    case("dpkg-divert", "dpkg-divert --local --rename --add /usr/bin/jq >/dev/null 2>&1 && ls /usr/bin/jq.distrib"),
    case(
        "dpkg-reconfigure",
        "echo 'Europe/Berlin' > /etc/timezone && ln -sf /usr/share/zoneinfo/Europe/Berlin /etc/localtime && DEBIAN_FRONTEND=noninteractive dpkg-reconfigure tzdata >/dev/null 2>&1; date -d @0 +%Z",
    ),
    case("dpkg-verify", "dpkg --verify coreutils; echo $?"),
    case("locale-gen", "echo 'en_US.UTF-8 UTF-8' > /etc/locale.gen && locale-gen >/dev/null 2>&1; locale -a | grep -i en_us"),
    case(
        "update-alternatives",
        "update-alternatives --install /usr/bin/pager2 pager2 /usr/bin/less 10 >/dev/null && readlink -f /usr/bin/pager2",
    ),
    case("update-rc-d", "update-rc.d cron defaults >/dev/null 2>&1; ls /etc/rc2.d | grep -c cron"),
    case("ldconfig", "ldconfig && ldconfig -p | head -1 | grep -c libs"),
    case("debconf", "echo 'tzdata tzdata/Areas select Europe' | debconf-set-selections && debconf-show tzdata | grep -c Europe"),
    case("venv-and-pip", "python3 -m venv /tmp/v && /tmp/v/bin/pip --version | cut -d' ' -f1"),
    case(
        "pip-install-a-folder",
        "mkdir -p /tmp/k && printf 'from setuptools import setup\\nsetup(name=\"k\", version=\"1\", py_modules=[\"k\"])\\n' > /tmp/k/setup.py && echo 'A=42' > /tmp/k/k.py && python3 -m venv /tmp/v && /tmp/v/bin/pip install -q --no-build-isolation /tmp/k 2>/dev/null; cd / && /tmp/v/bin/python -c 'import k; print(k.A)'",
    ),
    case("pip-refuses-the-system", "pip install --no-index nothing 2>&1 | grep -c externally-managed", normalize=last_line),
    case(
        "tar-with-owners",
        "cd /opt && tar cf /tmp/a.tar case/by-alice && mkdir /tmp/x && tar xpf /tmp/a.tar -C /tmp/x && stat -c '%U %G %a' /tmp/x/case/by-alice",
    ),
    case(
        "tar-with-xattrs",
        "cd /opt && tar --xattrs --xattrs-include='*' -cf /tmp/a.tar case/xattr case/cat-of-capability && mkdir /tmp/x && tar --xattrs --xattrs-include='*' -xpf /tmp/a.tar -C /tmp/x && getfattr -n user.colour --only-values /tmp/x/case/xattr && getcap /tmp/x/case/cat-of-capability",
    ),
    case(
        "cpio",
        "cd /opt/case && ls by-alice link-a | cpio -o --quiet > /tmp/c && mkdir /tmp/x && cd /tmp/x && cpio -i --quiet < /tmp/c && stat -c '%U %G' by-alice",
    ),
    case("unzip-and-xz", "cd /tmp && echo a > a && zip -q a.zip a && rm a && unzip -q a.zip && xz a && xz -d a.xz && cat a"),
    case(
        "rsync-with-owners",
        "rsync -a --numeric-ids /opt/case/ /tmp/copy/ && stat -c '%n %u %g %a' /tmp/copy/by-alice /tmp/copy/far /tmp/copy/setgid",
    ),
    case(
        "cp-archive",
        "cp -a /opt/case /tmp/copy && stat -c '%n %u %g %a %Y' /tmp/copy/old /tmp/copy/olddir /tmp/copy/setuid-id && getfattr -n user.colour --only-values /tmp/copy/xattr",
    ),
)
