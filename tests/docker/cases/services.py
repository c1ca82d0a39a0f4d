"""Services, started as people start them in a container: by their own scripts, in one exec, and used by the next."""

from __future__ import annotations

from tests.docker.case import case, last_line, nothing

_WAIT = "for i in $(seq 100); do {} && break; sleep 0.1; done"
_HTTP = "for i in $(seq 100); do curl -s -o /dev/null localhost:{port} && break; sleep 0.1; done; "

CASES = (
    case("nginx", "echo hello > /var/www/html/index.html; nginx", _HTTP.format(port=80) + "curl -s localhost"),
    case(
        "nginx-service",
        "service nginx start >/dev/null 2>&1; echo $?",
        _HTTP.format(port=80) + "curl -s -o /dev/null -w '%{http_code}' localhost",
    ),
    case("nginx-workers-are-www-data", "nginx", _HTTP.format(port=80) + "ps -o user= -C nginx | sort -u"),
    case(
        "nginx-reload-and-stop", "nginx && sleep 0.3 && nginx -s reload && sleep 0.5 && nginx -s quit && sleep 1; pgrep -c nginx", exits=1
    ),
    case("nginx-logs-to-stdout", "ln -sf /dev/stdout /var/log/nginx/access.log; nginx -t 2>&1 | tail -1"),
    case("apache", "apachectl start 2>/dev/null", _HTTP.format(port=80) + "curl -s localhost | grep -c 'It works'"),
    case("apache-processes-are-www-data", "apachectl start 2>/dev/null", _HTTP.format(port=80) + "ps -o user= -C apache2 | sort -u"),
    case(
        "postgres-service",
        "service postgresql start >/dev/null 2>&1; echo $?",
        _WAIT.format("su postgres -c 'psql -qc \"select 1\"' >/dev/null 2>&1") + "; su postgres -c \"psql -Atc 'select 6*7'\"",
    ),
    case(
        "postgres-createdb",
        "service postgresql start >/dev/null 2>&1; sleep 1; su postgres -c 'createuser -s root && createdb app'",
        "psql -At -d app -c 'create table t(a int); insert into t values (1),(2); select sum(a) from t' | tail -1",
    ),
    case("postgres-refuses-root", "/usr/lib/postgresql/15/bin/postgres -D /var/lib/postgresql/15/main", refused=True),
    case(
        "postgres-initdb-by-a-user",
        "/usr/lib/postgresql/15/bin/initdb -D /tmp/db >/dev/null 2>&1 && /usr/lib/postgresql/15/bin/pg_ctl -D /tmp/db -o '-k /tmp -p 5555' -w start >/dev/null && psql -h /tmp -p 5555 -Atc 'select 1' postgres",
        user="alice",
    ),
    case("mariadb", "service mariadb start >/dev/null 2>&1; echo $?", "mariadb -N -e 'select 40+2'"),
    case(
        "mariadb-user",
        "service mariadb start >/dev/null 2>&1; mariadb -e \"create database d; create user u@localhost identified by 'p'; grant all on d.* to u@localhost\"",
        "mariadb -u u -pp d -N -e 'create table t(a int); select database()'",
    ),
    case(
        "redis-service",
        "service redis-server start >/dev/null 2>&1; echo $?",
        _WAIT.format("redis-cli ping >/dev/null 2>&1") + "; redis-cli set a 1; redis-cli get a; ps -o user= -C redis-server",
    ),
    case("redis-daemonised", "redis-server --daemonize yes --port 7001 >/dev/null; sleep 0.3", "redis-cli -p 7001 ping"),
    case(
        "redis-unix-socket",
        "redis-server --daemonize yes --port 0 --unixsocket /run/redis.sock >/dev/null; sleep 0.5",
        "redis-cli -s /run/redis.sock ping",
    ),
    case(
        "memcached",
        "memcached -d -u memcache -P /tmp/mc.pid; sleep 0.3",
        "printf 'set a 0 0 1\\r\\n1\\r\\nget a\\r\\nquit\\r\\n' | nc -q1 localhost 11211 | tr -d '\\r'; ps -o user= -C memcached",
    ),
    case(
        "sshd-and-login",
        "mkdir -p /run/sshd && /usr/sbin/sshd && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id && install -d -o alice -g alice -m 700 /home/alice/.ssh && install -o alice -g alice -m 600 /root/.ssh/id.pub /home/alice/.ssh/authorized_keys",
        "ssh -o StrictHostKeyChecking=no -o LogLevel=ERROR -i /root/.ssh/id alice@localhost 'id -un; pwd'",
    ),
    case(
        "sshd-root-and-scp",
        "mkdir -p /run/sshd /root/.ssh && /usr/sbin/sshd -p 2222 && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id && cp /root/.ssh/id.pub /root/.ssh/authorized_keys; echo data > /tmp/a",
        "scp -q -P 2222 -o StrictHostKeyChecking=no -i /root/.ssh/id /tmp/a root@localhost:/tmp/b && cat /tmp/b",
    ),
    case(
        "sshd-with-terminal",
        "mkdir -p /run/sshd /root/.ssh && /usr/sbin/sshd && ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id && cp /root/.ssh/id.pub /root/.ssh/authorized_keys",
        "ssh -tt -o StrictHostKeyChecking=no -o LogLevel=ERROR -i /root/.ssh/id root@localhost 'test -t 0 && echo terminal' | tr -d '\\r'",
    ),
    case("cron-starts", "cron", "pgrep -x cron >/dev/null && echo runs; crontab -l 2>/dev/null || echo none"),
    case(
        "crontab-of-a-user",
        "echo '* * * * * true' | crontab - && crontab -l && stat -c '%U %G %a' /var/spool/cron/crontabs/alice 2>/dev/null || echo hidden",
        user="alice",
    ),
    case(
        "at",
        "atd && echo 'id -un > /tmp/at-ran' | at now 2>/dev/null; for i in $(seq 60); do test -s /tmp/at-ran && break; sleep 0.1; done; cat /tmp/at-ran",
    ),
    case(
        "at-of-a-user",
        "atd",
        "su alice -c \"echo 'id -un > /tmp/at-ran' | at now\" 2>/dev/null; for i in $(seq 60); do test -s /tmp/at-ran && break; sleep 0.1; done; cat /tmp/at-ran",
    ),
    case(
        "dbus-system",
        "mkdir -p /run/dbus && dbus-daemon --system --fork",
        "dbus-send --system --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.GetId | grep -c string",
    ),
    case(
        "dbus-service", "service dbus start >/dev/null 2>&1; echo $?", "test -S /run/dbus/system_bus_socket && ps -o user= -C dbus-daemon"
    ),
    case(
        "dbus-session-of-a-user",
        "dbus-run-session -- dbus-send --session --print-reply --dest=org.freedesktop.DBus / org.freedesktop.DBus.ListNames | grep -c org.freedesktop.DBus",
        user="alice",
        normalize=nothing,
    ),
    case(
        "supervisord",
        "printf '[supervisord]\\nuser=root\\nlogfile=/tmp/s.log\\n[unix_http_server]\\nfile=/tmp/s.sock\\n[rpcinterface:supervisor]\\nsupervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface\\n[supervisorctl]\\nserverurl=unix:///tmp/s.sock\\n[program:p]\\ncommand=sleep 100\\nuser=alice\\nstartsecs=0\\n' > /tmp/s.conf; supervisord -c /tmp/s.conf; sleep 1",
        "supervisorctl -c /tmp/s.conf status | tr -s ' ' | cut -d' ' -f1-2; ps -o user= -C sleep",
        normalize=lambda text: text.strip(),
    ),
    case(
        "rsyslog",
        "rsyslogd; sleep 0.5",
        "logger -t case hello; for i in $(seq 50); do grep -q 'case: hello' /var/log/syslog 2>/dev/null && break; sleep 0.1; done; grep -o 'case: hello' /var/log/syslog",
    ),
    case(
        "dev-log-socket",
        "socat -u UNIX-RECV:/dev/log OPEN:/tmp/log,creat & sleep 0.3; logger -u /dev/log hi; sleep 0.3; grep -o hi /tmp/log; stat -c %F /dev/log; kill $!",
    ),
    case(
        "php-server-on-80",
        "mkdir /srv/p; echo '<?php echo 6*7;' > /srv/p/index.php; nohup php -S 0.0.0.0:80 -t /srv/p >/dev/null 2>&1 &",
        _HTTP.format(port=80) + "curl -s localhost",
    ),
    case(
        "python-server-on-80-by-a-user",
        "nohup python3 -m http.server 80 -d /opt/case >/dev/null 2>&1 &",
        _HTTP.format(port=80) + "curl -s -o /dev/null -w '%{http_code}' localhost/link-a",
        user="alice",
    ),
    case(
        "logrotate",
        "printf 'a\\n' > /var/log/x.log; printf '/var/log/x.log {\\n rotate 1\\n create 0640 root adm\\n su root root\\n}\\n' > /tmp/lr; logrotate -f /tmp/lr; stat -c '%G %a' /var/log/x.log; ls /var/log/x.log.1",
    ),
    case("service-status-all", "service --status-all 2>/dev/null | grep -c nginx"),
    case("systemctl-is-not-there", "systemctl status", refused=True),
    case("invoke-rc-d-policy", "invoke-rc.d nginx start 2>&1 | tail -1", normalize=last_line),
    case(
        "rsync-daemon",
        "printf '[m]\\npath=/opt/case\\nread only=yes\\nuid=root\\n' > /tmp/rs; rsync --daemon --config=/tmp/rs; sleep 0.3",
        "rsync -a rsync://localhost/m/link-a /tmp/ && cat /tmp/link-a",
    ),
    case(
        "git-daemon",
        "git init -q --bare /srv/r.git; git daemon --base-path=/srv --export-all --detach; sleep 0.3",
        "git ls-remote git://localhost/r.git; echo $?",
    ),
)
