"""Networking inside one container that has only loopback: ports, raw sockets, netlink, name resolution, tools."""

from __future__ import annotations

from tests.docker.case import case

_PY = 'python3 -c "{}"'

CASES = (
    case("ping-localhost", "ping -c1 -W2 127.0.0.1 >/dev/null; echo $?"),
    case("ping-by-a-user", "ping -c1 -W2 127.0.0.1 >/dev/null; echo $?", user="alice"),
    case("ping-v6", "ping -6 -c1 -W2 ::1 >/dev/null; echo $?"),
    case(
        "ping-socket-by-a-user",
        _PY.format("import socket; socket.socket(socket.AF_INET,socket.SOCK_DGRAM,socket.IPPROTO_ICMP); print('made')"),
        user="alice",
    ),
    case("raw-socket", _PY.format("import socket; socket.socket(socket.AF_INET,socket.SOCK_RAW,socket.IPPROTO_ICMP); print('made')")),
    case(
        "raw-socket-by-a-user",
        _PY.format("import socket; socket.socket(socket.AF_INET,socket.SOCK_RAW,socket.IPPROTO_ICMP)"),
        user="alice",
        refused=True,
    ),
    case("packet-socket", _PY.format("import socket; socket.socket(socket.AF_PACKET,socket.SOCK_RAW,0); print('made')")),
    case(
        "tcpdump",
        "timeout 5 tcpdump -c1 -i lo -w /tmp/c icmp >/dev/null 2>&1 & sleep 1; ping -c2 127.0.0.1 >/dev/null; wait $!; test -s /tmp/c && echo captured",
    ),
    case("traceroute", "traceroute -I -m1 127.0.0.1 2>/dev/null | grep -c localhost"),
    case("bind-port-80", _PY.format("import socket; s=socket.create_server(('',80)); print(s.getsockname()[1])")),
    case("bind-port-80-by-a-user", _PY.format("import socket; s=socket.create_server(('',80)); print(s.getsockname()[1])"), user="alice"),
    case("bind-port-1-udp", _PY.format("import socket; s=socket.socket(socket.AF_INET,socket.SOCK_DGRAM); s.bind(('',1)); print('bound')")),
    case(
        "file-capability-binds",
        "su alice -c \"/opt/case/python-of-capability -c 'import socket; socket.create_server((str(),81)); print(81)'\"",
    ),
    case("bind-v6", _PY.format("import socket; s=socket.create_server(('::1',8080),family=socket.AF_INET6); print('bound')")),
    case(
        "dual-stack",
        _PY.format(
            "import socket; s=socket.create_server(('::',8080),family=socket.AF_INET6,dualstack_ipv6=True); c=socket.create_connection(('127.0.0.1',8080)); print(s.accept()[1][0])"
        ),
    ),
    case("bind-any-of-127", _PY.format("import socket; s=socket.create_server(('127.1.2.3',80)); print('bound')")),
    case("ip-link", "ip -o link show lo | cut -d' ' -f2-4"),
    case("ip-addr", "ip -o addr show lo | tr -s ' ' | cut -d' ' -f2-4"),
    case("interfaces", "ls /sys/class/net; cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '"),
    case("ip-route", "ip route; ip -6 route show table local | grep -c lo"),
    case("ifconfig", "ifconfig lo | grep -o 'inet 127[0-9.]*'"),
    case("ss-listening", "nc -l 127.0.0.1 4000 & sleep 0.3; ss -ltnH | tr -s ' ' | cut -d' ' -f4"),
    case("ss-with-processes", "nc -l 127.0.0.1 4000 & sleep 0.3; ss -ltnpH | grep -o '\"nc\"'"),
    case("ss-unix", "nc -lU /tmp/u & sleep 0.3; ss -xlH | grep -c /tmp/u"),
    case("netstat", "nc -l 127.0.0.1 4000 & sleep 0.3; netstat -ltn | grep -c 4000"),
    case("lsof-port", "nc -l 127.0.0.1 4000 & sleep 0.3; lsof -nP -iTCP:4000 -sTCP:LISTEN -F c | grep ^c"),
    case("ip-link-set-refused", "ip link set lo mtu 1400", refused=True),
    case("ip-link-add-refused", "ip link add d0 type dummy", refused=True),
    case("ip-addr-add-refused", "ip addr add 10.1.1.1/24 dev lo", refused=True),
    case("ip-route-add-refused", "ip route add blackhole 10.0.0.0/8", refused=True),
    case("iptables-refused", "iptables -L", refused=True),
    case("nft-refused", "nft list ruleset", refused=True),
    case("ip-netns-refused", "ip netns add n", refused=True),
    case("tun-refused", "mkdir -p /dev/net && mknod /dev/net/tun c 10 200 && ip tuntap add dev t0 mode tun", refused=True),
    case("resolve-localhost", "getent hosts localhost | tr -s ' '; getent ahostsv4 localhost | head -1 | tr -s ' '"),
    case("resolve-own-name", "getent hosts $(hostname) >/dev/null; echo $?"),
    case("resolve-unknown-name", "getent hosts no.such.name.invalid", refused=True),
    case("no-way-out", "timeout 5 bash -c '</dev/tcp/192.0.2.1/80'", refused=True),
    case(
        "no-way-out-errno",
        _PY.format("import socket,errno; s=socket.socket(); s.settimeout(3); print(errno.errorcode[s.connect_ex(('192.0.2.1',80))])"),
    ),
    case("hostname", 'test "$(hostname)" = "$(cat /etc/hostname)" && test "$(hostname)" = "$(uname -n)" && echo same'),
    case("hostname-in-environment", 'test "$HOSTNAME" = "$(hostname)" && echo same'),
    case("hostname-in-hosts", "grep -c localhost /etc/hosts"),
    case("sethostname-refused", "hostname other", refused=True),
    case("domainname-refused", "domainname other", refused=True),
    case("unix-stream", "socat UNIX-LISTEN:/tmp/s,fork EXEC:cat & sleep 0.3; echo hi | socat - UNIX-CONNECT:/tmp/s"),
    case("unix-abstract", "socat ABSTRACT-LISTEN:s,fork EXEC:cat & sleep 0.3; echo hi | socat - ABSTRACT-CONNECT:s"),
    case(
        "unix-credentials",
        _PY.format("import socket,struct; a,b=socket.socketpair(); print(struct.unpack('3i',a.getsockopt(1,17,12))[1:])"),
    ),
    case(
        "unix-descriptor-passing",
        _PY.format("import socket,os; a,b=socket.socketpair(); socket.send_fds(a,[b'x'],[1]); print(len(socket.recv_fds(b,1,1)[1]))"),
    ),
    case(
        "multicast",
        _PY.format(
            "import socket,struct; s=socket.socket(2,2); s.bind(('',5007)); s.setsockopt(0,35,struct.pack('4s4s',socket.inet_aton('224.1.1.1'),socket.inet_aton('127.0.0.1'))); print('joined')"
        ),
    ),
    case("broadcast-option", _PY.format("import socket; s=socket.socket(2,2); s.setsockopt(1,6,1); print(s.getsockopt(1,6))")),
    case("bind-to-device", _PY.format("import socket; s=socket.socket(); s.setsockopt(1,25,b'lo'); print(s.getsockopt(1,25,16))")),
    case("mark-of-a-socket", _PY.format("import socket; s=socket.socket(); s.setsockopt(1,36,1); print('set')")),
    case("transparent-option", _PY.format("import socket; s=socket.socket(); s.setsockopt(0,19,1); print('set')")),
    case(
        "netlink-families",
        _PY.format(
            "import socket\nfor f in range(0,23):\n  try: socket.socket(16,3,f); print(f,'made')\n  except OSError as e: print(f,'refused')"
        ),
    ),
    case(
        "socket-families",
        _PY.format(
            "import socket\nfor f in range(0,46):\n  try: socket.socket(f,2,0); print(f,'made')\n  except OSError as e: print(f,'refused')"
        ),
    ),
    case("vsock-refused", _PY.format("import socket; socket.socket(40,1,0)"), refused=True),
    case("alg-refused", _PY.format("import socket; socket.socket(38,5,0)"), refused=True),
    case(
        "socket-types",
        _PY.format(
            "import socket,errno\nfor t in (1,2,3,4,5,6):\n  try: socket.socket(2,t,0); print(t,'made')\n  except OSError as e: print(t,errno.errorcode[e.errno])"
        ),
    ),
    case(
        "sctp-and-udplite",
        _PY.format(
            "import socket,errno\nfor p in (132,136,33):\n  try: socket.socket(2,2,p); print(p,'made')\n  except OSError as e: print(p,errno.errorcode[e.errno])"
        ),
    ),
    case(
        "sysctl-port-start",
        'cat /proc/sys/net/ipv4/ip_unprivileged_port_start; awk \'{print ($1 <= 1500 && $2 >= 1600) ? "anyone" : "few"}\' /proc/sys/net/ipv4/ping_group_range',
    ),
    case("sysctl-net-read-only", "echo 1 > /proc/sys/net/ipv4/ip_forward", refused=True),
    case("somaxconn", "cat /proc/sys/net/core/somaxconn"),
    case(
        "curl-file-and-http",
        "cd /opt/case && python3 -m http.server 8000 >/dev/null 2>&1 & sleep 1; curl -s localhost:8000/link-a; curl -s file:///opt/case/link-b",
    ),
    case(
        "node-server",
        "node -e \"require('http').createServer((q,r)=>r.end('node')).listen(3000)\" & for i in $(seq 50); do curl -s localhost:3000 && break; sleep 0.1; done; kill $!",
    ),
    case(
        "openssl-server",
        "cd /tmp && openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -days 1 -subj /CN=localhost 2>/dev/null; openssl s_server -key k -cert c -accept 4433 -www >/dev/null 2>&1 & sleep 1.5; curl -sk https://localhost:4433 | grep -c Ciphers | head -1; kill $!",
    ),
    case(
        "git-clone-local-ssh-less",
        "git init -q /tmp/a && cd /tmp/a && git -c user.name=x -c user.email=x@x commit -q --allow-empty -m x && git clone -q /tmp/a /tmp/b && git -C /tmp/b log --oneline | wc -l",
    ),
)
