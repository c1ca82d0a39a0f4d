"""Terminals: `docker exec -t` and terminal multiplexers."""

from __future__ import annotations

from tests.docker.case import case

CASES = (
    case("stdin-is-a-terminal", "test -t 0 && test -t 1 && test -t 2 && echo yes", terminal=True),
    case("tty-name", "tty", terminal=True),
    case("term-variable", "echo $TERM", terminal=True),
    case("dev-tty", "echo through > /dev/tty", terminal=True),
    case("dev-console", "test -e /dev/console; echo $?", terminal=True),
    case("size", "stty size", terminal=True),
    case("stty", "stty -a | grep -o 'isig icanon'", terminal=True),
    case("controlling-terminal", "ps -o tty= -p $$", terminal=True),
    case("owner-of-the-terminal", "stat -c '%U %G %a' $(tty)", terminal=True),
    case("terminal-of-a-user", "tty && echo x > $(tty) && stat -c %U $(tty)", terminal=True, user="alice"),
    case("job-control", "bash -ic 'sleep 100 & jobs | wc -l; kill %1' 2>/dev/null", terminal=True),
    case("exit-code", "exit 7", terminal=True, exits=7),
    case("no-terminal-without-asking", "test -t 0 || test -t 1; echo $?"),
    case("stdin-is-empty", "wc -c"),
    case("stdin-kind", "readlink /proc/self/fd/0 | sed 's/:.*//'"),
    case("stdin-given", "cat | tr a-z A-Z", input=b"hello\n"),
    case("stdin-binary", "wc -c; ", input=bytes(range(256)) * 64),
    case("script-makes-a-terminal", "script -qec 'tty; test -t 0 && echo terminal' /dev/null | tr -d '\\r'"),
    case("python-pty", "python3 -c \"import pty; pty.spawn(['sh','-c','tty'])\" | tr -d '\\r'"),
    case("expect", "expect -c 'log_user 0; spawn sh -c {read a; echo got $a}; send \"x\\r\"; expect {got x} {puts found}'"),
    case("openpty-by-a-user", "script -qec 'stat -c %U $(tty)' /dev/null | tr -d '\\r'", user="alice"),
    case("ptmx-modes", "stat -L -c '%a %t %T' /dev/ptmx; stat -c %a /dev/pts"),
    case(
        "tmux-across-execs",
        "tmux new-session -d -s s 'sleep 100'",
        "tmux list-sessions -F '#{session_name}'",
        "tmux send-keys -t s q; tmux kill-server; sleep 0.2; tmux ls 2>/dev/null; echo $?",
    ),
    case(
        "tmux-runs-commands",
        "tmux new-session -d -s s -x 80 -y 24",
        "tmux send-keys -t s 'echo out > /tmp/out' Enter; for i in $(seq 50); do test -s /tmp/out && break; sleep 0.1; done; cat /tmp/out",
    ),
    case("tmux-of-a-user", "su alice -c 'tmux new-session -d -s s \"sleep 100\"'", "su alice -c 'tmux ls -F \"#{session_name}\"'"),
    case("screen-across-execs", "screen -dmS s sleep 100", "screen -ls | grep -c Detached"),
    case("wall-and-mesg", "mesg n 2>/dev/null; echo $?", terminal=True),
    case("ctrl-characters", "stty intr ^C; stty -a | grep -o 'intr = ^C'", terminal=True),
    case("su-on-a-terminal", "su - alice -c 'test -t 0 && id -un'", terminal=True),
    case("sudo-with-use-pty", "sudo -n sh -c 'test -t 0 && id -un' 2>/dev/null", terminal=True, user="alice"),
)
