"""Files: what an image's layers contain, ownership, permissions, attributes, and what a file system can do."""

from __future__ import annotations

from tests.docker.case import case

_PY = 'python3 -c "{}"'

CASES = (
    # what the image contains
    case("owner-and-mode", "stat -c '%u %g %a' /opt/case/by-alice /opt/case/empty"),
    case("owner-above-65535", "stat -c '%u %g' /opt/case/far /opt/case/farther"),
    case("setuid-bit", "stat -c %a /opt/case/setuid-id /opt/case/setgid-id /usr/bin/passwd /usr/bin/sudo"),
    case("setgid-directory", "stat -c '%a %G' /opt/case/setgid; stat -c %a /opt/case/sticky"),
    case("setuid-works", "/opt/case/setuid-id -u -r; /opt/case/setuid-id -u", user="alice"),
    case("setgid-works", "/opt/case/setgid-id -gn", user="carol"),
    case("file-capabilities-of-the-image", "getcap /opt/case/cat-of-capability /opt/case/python-of-capability"),
    case("file-capability-works", "/opt/case/cat-of-capability /etc/shadow | head -1 | cut -d: -f1", user="alice"),
    case("without-file-capability", "cat /etc/shadow", user="alice", refused=True),
    case("fifo-of-the-image", "stat -c '%F %a' /opt/case/fifo"),
    case("fifo-works", "echo through > /opt/case/fifo & cat /opt/case/fifo"),
    case("xattr-of-the-image", "getfattr -n user.colour --only-values /opt/case/xattr"),
    case("hard-links-of-the-image", "stat -c %h /opt/case/link-a; test /opt/case/link-a -ef /opt/case/link-b && echo same"),
    case("symlink-owner", "stat -c '%U %G' /opt/case/symlink; readlink /opt/case/symlink /opt/pointer"),
    case("file-time", "stat -c %Y /opt/case/old"),
    case("directory-time", "stat -c %Y /opt/case/olddir"),
    case("sparse-file", "stat -c %s /opt/case/sparse"),
    case("whiteout-of-a-file", "ls /opt/lower/gone", refused=True),
    case("whiteout-of-a-directory", "ls -d /opt/lower/dropped", refused=True),
    case("opaque-directory", "ls -A /opt/lower/replaced; ls -A /opt/lower"),
    case("changed-in-the-second-layer", "cat /opt/lower/changed /opt/lower/kept/file"),
    case("no-whiteouts-to-be-seen", "find / -xdev -name '.wh.*' 2>/dev/null; find /opt /etc /usr -xdev -type c 2>/dev/null"),
    case("root-directory", "stat -c '%U %a' /; ls / | grep -v '^workspace$'"),
    case("no-files-besides-the-image", "ls -A / | grep -v '^.dockerenv$' | tr '\\n' ' '"),
    case("tmp-modes", "stat -c '%n %a %U' /tmp /var/tmp /run /root /home/alice /run/lock"),
    # ownership
    case("chown", "touch /tmp/a && chown alice:crew /tmp/a && stat -c '%U %G' /tmp/a"),
    case("chown-recursive", "mkdir -p /tmp/d/e && touch /tmp/d/e/f && chown -R 1500:1600 /tmp/d && stat -c '%u %g' /tmp/d /tmp/d/e/f"),
    case("chown-to-a-high-uid", "touch /tmp/a && chown 70000:70001 /tmp/a && stat -c '%u %g' /tmp/a"),
    case("chown-to-65534", "touch /tmp/a && chown 65534:65534 /tmp/a && stat -c '%u %g %U' /tmp/a"),
    case("chown-by-a-user", "touch /tmp/a && chown root /tmp/a", user="alice", refused=True),
    case("chgrp-by-a-user", "touch /tmp/a && chgrp crew /tmp/a && stat -c %G /tmp/a", user="alice"),
    case("setgid-directory-inherits", "touch /opt/case/setgid/new && stat -c %G /opt/case/setgid/new", user="alice"),
    case("sticky-directory-protects", "su carol -c 'touch /opt/case/sticky/c' && su alice -c 'rm -f /opt/case/sticky/c'", refused=True),
    case("root-reads-what-others-own", "su alice -c 'umask 077; echo x > /tmp/secret' && cat /tmp/secret"),
    case("root-writes-what-others-own", "su alice -c 'mkdir -m 700 /tmp/p' && echo y > /tmp/p/f && stat -c %U /tmp/p/f && rm -r /tmp/p"),
    case("root-passes-mode-000", "cat /opt/case/empty; echo z > /opt/case/empty; cat /opt/case/empty"),
    case("root-removes-home-of-a-user", "su alice -c 'mkdir -m 700 -p ~/a/b; touch ~/a/b/c' && rm -r /home/alice/a && echo gone"),
    case("a-user-cannot-read-root", "ls /root", user="alice", refused=True),
    case("a-user-cannot-write-etc", "touch /etc/x", user="alice", refused=True),
    case("install-with-owner", "install -o alice -g crew -m 640 /etc/hosts /tmp/h && stat -c '%U %G %a' /tmp/h"),
    case("install-directory", "install -d -o alice -g crew -m 2770 /tmp/d && stat -c '%U %G %a' /tmp/d"),
    case("chmod-setuid", "cp /usr/bin/id /tmp/i && chown alice /tmp/i && chmod u+s /tmp/i && su carol -c '/tmp/i -un'"),
    case("chmod-keeps-setgid", "touch /tmp/a && chown :crew /tmp/a && chmod 2755 /tmp/a && stat -c %a /tmp/a"),
    case("setuid-lost-on-write", "cp /usr/bin/id /tmp/i && chmod 4777 /tmp/i && su carol -c 'echo x >> /tmp/i' && stat -c %a /tmp/i"),
    case("umask-default", "umask; touch /tmp/a; mkdir /tmp/d; stat -c %a /tmp/a /tmp/d"),
    # attributes
    case("setcap", "cp /usr/bin/cat /tmp/c && setcap cap_dac_override,cap_net_raw+ep /tmp/c && getcap /tmp/c"),
    case(
        "setcap-works-for-a-user",
        "cp /usr/bin/cat /tmp/c && setcap cap_dac_override+ep /tmp/c && su alice -c '/tmp/c /etc/shadow | head -1 | cut -d: -f1'",
    ),
    case("setcap-by-a-user", "cp /usr/bin/cat /tmp/c && /sbin/setcap cap_dac_override+ep /tmp/c", user="alice", refused=True),
    case("xattr-user", "touch /tmp/a && setfattr -n user.k -v v /tmp/a && getfattr -n user.k --only-values /tmp/a"),
    case("xattr-trusted", "touch /tmp/a && setfattr -n trusted.k -v v /tmp/a", refused=True),
    case("xattr-security", "touch /tmp/a && setfattr -n security.k -v v /tmp/a", refused=True),
    case("xattr-trusted-overlay-hidden", "getfattr -m - -d /opt/lower/replaced 2>/dev/null | wc -l"),
    case("acl", "touch /tmp/a && setfacl -m u:alice:rw /tmp/a && getfacl -cp /tmp/a && su alice -c 'echo x > /tmp/a'"),
    case("acl-default", "mkdir /tmp/d && setfacl -d -m g:crew:rwx /tmp/d && mkdir /tmp/d/e && getfacl -cp /tmp/d/e | grep crew"),
    case("chattr-immutable", "touch /tmp/a && chattr +i /tmp/a", refused=True),
    case("chattr-nodump", "touch /tmp/a && chattr +d /tmp/a; echo $?"),
    # what a file system can do
    case("hard-link", "echo a > /tmp/a && ln /tmp/a /tmp/b && stat -c %h /tmp/b"),
    case("hard-link-of-an-image-file", "ln /opt/case/old /opt/case/old2 && stat -c %h /opt/case/old2"),
    case("rename-directory-of-the-image", "mv /opt/lower/kept /opt/lower/moved && cat /opt/lower/moved/file"),
    case("remove-directory-of-the-image", "rm -r /opt/lower && ls /opt && mkdir /opt/lower && ls -A /opt/lower"),
    case(
        "rename-exchange",
        _PY.format(
            "import ctypes,os; open('/tmp/a','w').write('a'); open('/tmp/b','w').write('b'); l=ctypes.CDLL(None,use_errno=True); print(l.renameat2(-100,b'/tmp/a',-100,b'/tmp/b',2), open('/tmp/a').read())"
        ),
    ),
    case(
        "tmpfile",
        _PY.format(
            "import os; f=os.open('/tmp',os.O_TMPFILE|os.O_RDWR); os.write(f,b'x'); __import__('ctypes').CDLL(None).linkat(-100,b'/proc/self/fd/%d'%f,-100,b'/tmp/named',0x400); print(open('/tmp/named').read())"
        ),
    ),
    case("fallocate", "fallocate -l 3M /tmp/f && stat -c %s /tmp/f && fallocate -p -o 0 -l 1M /tmp/f && stat -c %s /tmp/f"),
    case("truncate-and-sparse", "truncate -s 10G /tmp/f && stat -c %s /tmp/f && du -k /tmp/f | cut -f1"),
    case("copy-reflink-auto", "cp --reflink=auto /usr/bin/cat /tmp/c && cmp /usr/bin/cat /tmp/c && echo same"),
    case("flock", "flock /tmp/l -c 'flock -n /tmp/l -c true || echo locked'"),
    case("posix-lock", _PY.format("import fcntl; f=open('/tmp/l','w'); fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB); print('locked')")),
    case(
        "lease",
        _PY.format("import fcntl; open('/tmp/l','w').close(); f=open('/tmp/l'); print(fcntl.fcntl(f,fcntl.F_SETLEASE,fcntl.F_RDLCK))"),
    ),
    case("inotify", "touch /tmp/w; inotifywait -qq -t 5 -e modify /tmp/w & sleep 0.5; echo x >> /tmp/w; wait $!; echo $?"),
    case("mkfifo", "mkfifo /tmp/p && echo x > /tmp/p & sleep 0.2; cat /tmp/p"),
    case("mknod-null", "mknod /tmp/null c 1 3 && echo x > /tmp/null && stat -c '%t %T' /tmp/null"),
    case("mknod-zero-reads", "mknod -m 666 /tmp/zero c 1 5 && head -c4 /tmp/zero | od -An -tx1"),
    case("mknod-of-a-disk-cannot-be-read", "mknod /tmp/disk b 254 0; head -c1 /tmp/disk", refused=True),
    case("mknod-of-memory-cannot-be-read", "mknod /tmp/mem c 1 1; head -c1 /tmp/mem", refused=True),
    case("long-names", "cd /tmp && n=$(printf 'a%.0s' $(seq 255)) && touch $n && ls | wc -c && touch ${n}a", refused=True),
    case("names-with-any-byte", "cd /tmp && touch \"$(printf 'a\\nb')\" \"$(printf '\\377')\" && ls | wc -l"),
    case("case-sensitive", "cd /tmp && touch a A && ls | wc -l"),
    case("statfs-type", "stat -f -c %T / /dev/shm /proc /sys"),
    case("write-etc-hosts", "echo '127.0.0.1 made-up' >> /etc/hosts && getent hosts made-up | tr -s ' '"),
    case("write-resolv-conf", "echo 'nameserver 127.0.0.1' > /etc/resolv.conf && cat /etc/resolv.conf"),
    case("replace-etc-hosts-by-rename", "cp /etc/hosts /tmp/h && mv /tmp/h /etc/hosts", refused=True),
    case("write-hostname-file", "echo other > /etc/hostname && cat /etc/hostname"),
    case("dev-full", "echo x > /dev/full", refused=True),
    case("execute-from-tmp", "cp /usr/bin/id /tmp/i && /tmp/i -u"),
    case("execute-from-shm", "cp /usr/bin/id /dev/shm/i && /dev/shm/i -u", refused=True),
    case("execute-from-dev", "cp /usr/bin/id /dev/i && /dev/i -u"),
    case(
        "mmap-shared",
        _PY.format(
            "import mmap; f=open('/tmp/m','w+b'); f.truncate(4096); m=mmap.mmap(f.fileno(),4096); m[:2]=b'ab'; m.flush(); print(open('/tmp/m','rb').read(2))"
        ),
    ),
    case(
        "name-to-handle",
        _PY.format(
            "import ctypes; l=ctypes.CDLL(None,use_errno=True); b=ctypes.create_string_buffer(200); b[0]=128; m=ctypes.c_int(); r=l.name_to_handle_at(-100,b'/etc/hosts',b,ctypes.byref(m),0); print(r, ctypes.get_errno() if r else 0)"
        ),
    ),
    case(
        "open-by-handle",
        _PY.format(
            "import ctypes; l=ctypes.CDLL(None,use_errno=True); b=ctypes.create_string_buffer(200); b[0]=8; print(l.open_by_handle_at(-100,b,0), ctypes.get_errno())"
        ),
    ),
)
