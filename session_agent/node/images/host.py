"""The `host` image: a read-only view of this machine's toolchain with nothing private in it.

Owns which files of the machine are visible: /usr (and /bin, /lib… if they are not links into it) unchanged, and an /etc with the public
files of an allow-list. The trees are not id-mapped, so all files belong to the user nobody inside, and only files that every user of the
machine may read can be read. Nothing of the machine's /home, /root, /var, /opt, /srv or /mnt is shown.
"""

from __future__ import annotations

import os
import shutil
import stat

from session_agent.node.images import skeleton
from session_agent.node.images.spec import DEFAULT_PATH, ImageSpec
from session_agent.node.kernel.namespaces import shared_ids

NAME = "host"
_NAMES = "/opt/host/bin"
"""The last directory in PATH: program names that scripts expect and this machine does not have."""
_DIRECTORIES = {
    "workspace": 0o777, "root": 0o700, "home/user": 0o700, "var/tmp": 0o1777, "var/lib": 0o755, "var/cache": 0o755, "var/log": 0o755,
    "mnt": 0o755, "media": 0o755, "opt": 0o755, "opt/host": 0o755, "opt/host/bin": 0o755, "srv": 0o755,
}  # fmt: skip
_TREES = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Configuration and sources that users keep under /usr are private, not part of the toolchain.
_HIDDEN = ("usr/local/etc", "usr/local/src", "usr/src")
_ETC_FILES = (
    "debian_version", "os-release", "lsb-release", "redhat-release", "alpine-release", "ld.so.cache", "ld.so.conf",
    "localtime", "timezone", "locale.alias", "locale.conf", "mime.types", "magic", "magic.mime", "protocols",
    "services", "rpc", "ethertypes", "shells", "inputrc", "bash.bashrc", "bindresvport.blacklist", "gai.conf",
    "host.conf", "xattr.conf", "ssl/openssl.cnf", "debconf.conf",
)  # fmt: skip
_ETC_DIRECTORIES = ("alternatives", "ld.so.conf.d", "ssl/certs", "pki/tls/certs", "pki/ca-trust", "terminfo", "fonts", "perl")
_USERS = (
    "root:x:0:0:root:/root:/bin/bash\n"
    "daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n"
    "www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin\n"
    "user:x:1000:1000:user:/home/user:/bin/bash\n"
    "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
)
_GROUP = "root:x:0:\ndaemon:x:1:\nadm:x:4:\ntty:x:5:\nwww-data:x:33:\nstaff:x:50:\nusers:x:100:\nuser:x:1000:\nnogroup:x:65534:\n"
_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n"
_PROFILE = (
    'if [ "$(id -u)" -eq 0 ]; then\n'
    f"  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:{_NAMES}\n"
    "else\n"
    f"  PATH=/usr/local/bin:/usr/bin:/bin:{_NAMES}\n"
    "fi\nexport PATH\n"
)
_ETC_TEXTS = {"passwd": _USERS, "group": _GROUP, "nsswitch.conf": _NSSWITCH, "profile": _PROFILE}


def build(path: str) -> None:
    """Create the host image's own layer at *path* again."""
    skeleton.build(path, *skeleton.LAYERS)
    for name, mode in _DIRECTORIES.items():
        skeleton.make_directory(os.path.join(path, name), mode)
    if os.geteuid() == 0:
        home = os.path.join(path, "home/user")
        os.chown(home, 1000, 1000)
        if shared_ids():  # the node's user must be able to remove the folder, also without the node
            os.chmod(home, 0o755)  # noqa: S103
    for name in _TREES:
        source = f"/{name}"
        if os.path.islink(source):
            os.symlink(os.readlink(source), os.path.join(path, name))
        elif os.path.isdir(source):
            skeleton.make_directory(os.path.join(path, name), 0o755)
    python = shutil.which("python3", path=DEFAULT_PATH)
    if python and not shutil.which("python", path=DEFAULT_PATH):
        os.symlink(python, f"{path}{_NAMES}/python")
    _fill_etc(os.path.join(path, "etc"))


def spec(path: str) -> ImageSpec:
    """The image that consists of the layer at *path* and the machine's trees."""
    present = [name for name in _TREES if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]
    return ImageSpec(
        digest=NAME,
        layers=(path,),
        trees=tuple((f"/{name}", name) for name in present),
        env={"PATH": f"{DEFAULT_PATH}:{_NAMES}", "LANG": "C.UTF-8"},
        hidden=tuple(name for name in _HIDDEN if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")),
    )


def _fill_etc(etc: str) -> None:
    for name, text in _ETC_TEXTS.items():
        path = os.path.join(etc, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, 0o644)
    for name in _ETC_FILES:
        _copy_public(f"/etc/{name}", os.path.join(etc, name))
    for name in _ETC_DIRECTORIES:
        _copy_directory(f"/etc/{name}", os.path.join(etc, name))
    for entry in os.scandir("/etc"):
        if entry.name.startswith(("python3", "java-")) and entry.is_dir(follow_symlinks=False):
            _copy_directory(entry.path, os.path.join(etc, entry.name))


def _copy_directory(source: str, target: str) -> None:
    if not os.path.isdir(source):
        return
    for entry in os.scandir(source):
        if entry.is_dir(follow_symlinks=False):
            _copy_directory(entry.path, os.path.join(target, entry.name))
        else:
            _copy_public(entry.path, os.path.join(target, entry.name))


def _copy_public(source: str, target: str) -> None:
    """Copy links as links, and regular files only if every user may read them."""
    try:
        status = os.lstat(source)
    except OSError:
        return
    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(status.st_mode) and status.st_mode & 0o004:
        shutil.copyfile(source, target)
        os.chmod(target, 0o755 if status.st_mode & 0o111 else 0o644)
