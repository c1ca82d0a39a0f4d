"""Tracing and debugging of own processes, core dumps, and the parts of these that docker refuses."""

from __future__ import annotations

from tests.docker.case import case

_PY = 'python3 -c "{}"'
_HELLO = "printf '#include <stdio.h>\\n#include <pthread.h>\\nint x=41;void*f(void*a){x++;return a;}int main(){pthread_t t;pthread_create(&t,0,f,0);pthread_join(t,0);printf(\"%%d\\\\n\",x);return 0;}' > /tmp/h.c && gcc -g -pthread -o /tmp/h /tmp/h.c"

CASES = (
    case("strace-a-child", "strace -f -e trace=execve -o /tmp/t true; grep -c execve /tmp/t"),
    case("strace-by-a-user", "strace -o /tmp/t true; test -s /tmp/t && echo traced", user="alice"),
    case("strace-attach", "sleep 100 & p=$!; sleep 0.2; timeout 2 strace -p $p -o /tmp/t; kill $p; test -s /tmp/t && echo traced"),
    case("strace-count", "strace -c -o /tmp/t ls >/dev/null; grep -c total /tmp/t"),
    case("strace-seccomp-bpf", "strace --seccomp-bpf -f -e trace=openat -o /tmp/t cat /etc/hostname >/dev/null; grep -c hostname /tmp/t"),
    case(
        "strace-attach-to-another-exec",
        "nohup sleep 100 >/dev/null 2>&1 &",
        "p=$(pgrep -x sleep | tail -1); timeout 2 strace -p $p -o /tmp/t 2>&1 | grep -c attached; kill $p",
    ),
    case(
        "strace-users-process-by-root",
        "su alice -c 'sleep 100' & sleep 0.3; timeout 2 strace -o /tmp/t -p $(pgrep -u alice -x sleep) 2>/dev/null; test -s /tmp/t; echo $?",
    ),
    case("strace-of-roots-process-by-a-user", "sleep 100 & su alice -c \"strace -p $! 2>&1\" | grep -c 'not permitted'"),
    case("ltrace", "ltrace -o /tmp/t ls / >/dev/null 2>&1; test -s /tmp/t; echo $?"),
    case(
        "gdb-run", f"{_HELLO} && gdb -q -batch -ex 'break main' -ex run -ex 'print x' -ex continue /tmp/h 2>/dev/null | grep -E '^\\$1|^42'"
    ),
    case("gdb-threads", f"{_HELLO} && gdb -q -batch -ex 'break f' -ex run -ex 'info threads' /tmp/h 2>/dev/null | grep -c Thread"),
    case("gdb-attach", "sleep 100 & gdb -q -batch -p $! -ex 'info inferiors' 2>/dev/null | grep -c bin/sleep"),
    case(
        "gdb-without-randomisation",
        f"{_HELLO} && gdb -q -batch -ex run -ex 'show disable-randomization' /tmp/h 2>&1 | grep -c 'randomization'",
    ),
    case("gcore", "sleep 100 & gcore -o /tmp/core $! >/dev/null 2>&1; ls /tmp/core.* | wc -l"),
    case(
        "gdb-backtrace-of-python",
        "python3 -c 'import time; time.sleep(100)' & sleep 0.5; gdb -q -batch -p $! -ex bt 2>/dev/null | grep -c '#0'",
    ),
    case(
        "core-file",
        "cat /proc/sys/kernel/core_pattern; ulimit -c; ulimit -c unlimited; cd /tmp && mkdir w && cd w && (sh -c 'kill -SEGV $$'; true) 2>/dev/null; ls | wc -l",
    ),
    case(
        "core-file-of-c",
        "ulimit -c unlimited; cd /tmp && mkdir w && cd w && printf 'int main(){*(volatile int*)0=1;}' > a.c && gcc -g a.c && ./a.out; echo $?; ls core* 2>/dev/null | wc -l",
    ),
    case("core-limit", "ulimit -Sc; ulimit -Hc"),
    case("dmesg-refused", "dmesg", refused=True),
    case(
        "perf-event-refused",
        _PY.format(
            "import ctypes,os; l=ctypes.CDLL(None,use_errno=True); b=ctypes.create_string_buffer(128); b[4]=128; r=l.syscall(298,b,0,-1,-1,0); print(r,ctypes.get_errno())"
        ),
    ),
    case(
        "bpf-refused",
        _PY.format(
            "import ctypes; l=ctypes.CDLL(None,use_errno=True); b=ctypes.create_string_buffer(128); r=l.syscall(321,0,b,72); print(r,ctypes.get_errno())"
        ),
    ),
    case(
        "userfaultfd-refused",
        _PY.format("import ctypes; l=ctypes.CDLL(None,use_errno=True); r=l.syscall(323,0); print(r,ctypes.get_errno())"),
    ),
    case(
        "process-vm-readv",
        _PY.format(
            "import ctypes,os; l=ctypes.CDLL(None,use_errno=True); r=l.syscall(310,os.getpid(),None,0,None,0,ctypes.c_long(0)); print(r,ctypes.get_errno())"
        ),
    ),
    case(
        "kcmp-refused",
        _PY.format(
            "import ctypes,os; l=ctypes.CDLL(None,use_errno=True); r=l.syscall(312,os.getpid(),os.getpid(),0,0,0); print(r,ctypes.get_errno())"
        ),
    ),
    case(
        "pidfd",
        _PY.format(
            "import os,signal; p=os.fork() or signal.pause(); f=os.pidfd_open(p); signal.pidfd_send_signal(f,9); print(os.waitpid(p,0)[1])"
        ),
    ),
    case(
        "pidfd-getfd-refused",
        _PY.format(
            "import ctypes,os; l=ctypes.CDLL(None,use_errno=True); r=l.syscall(438,os.pidfd_open(os.getpid()),0,0); print(r,ctypes.get_errno())"
        ),
    ),
    case("ptrace-traceme", _PY.format("import ctypes; l=ctypes.CDLL(None,use_errno=True); print(l.ptrace(0,0,0,0))")),
    case("yama", "cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo none"),
    case(
        "proc-mem-of-a-child",
        "sleep 100 & p=$!; sleep 0.1; head -c0 /proc/$p/mem && cat /proc/$p/maps | wc -l | sed 's/[0-9]*/n/'; kill $p",
    ),
    case("proc-environ-of-a-child", "FOO=bar sleep 100 & p=$!; sleep 0.1; tr '\\0' '\\n' < /proc/$p/environ | grep FOO; kill $p"),
    case("proc-environ-of-pid-1", "tr '\\0' '\\n' < /proc/1/environ | grep -c '^PATH='"),
    case("proc-root-and-cwd", "sleep 100 & p=$!; sleep 0.1; readlink /proc/$p/root /proc/$p/cwd /proc/$p/exe; kill $p", cwd="/tmp"),
    case("stress-ng", "stress-ng --cpu 1 --timeout 1 -q; echo $?"),
    case("valgrind-like-personality", "setarch -R true; echo $?"),
    case(
        "prlimit-of-a-child",
        "sleep 100 & p=$!; prlimit -p $p --nofile=100:200 && prlimit -p $p --nofile --noheadings -o SOFT,HARD | tr -s ' '; kill $p",
    ),
    case(
        "prlimit-of-a-child-by-a-user",
        "sleep 100 & p=$!; prlimit -p $p --nofile=100:200 && prlimit -p $p --nofile --noheadings -o SOFT,HARD | tr -s ' '; kill $p",
        user="alice",
    ),
    case(
        "prlimit-users-process-by-root",
        "su alice -c 'sleep 100' & sleep 0.3; prlimit -p $(pgrep -u alice -x sleep) --nofile=100:200; echo $?",
    ),
    case("time-verbose", "/usr/bin/time -f '%x' true"),
)
