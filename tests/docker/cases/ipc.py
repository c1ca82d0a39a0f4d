"""Communication between processes, and system calls that programs use every day."""

from __future__ import annotations

from tests.docker.case import case

_PY = 'python3 -c "{}"'

CASES = (
    case(
        "posix-queue-send-and-receive",
        _PY.format(
            "import ctypes; l=ctypes.CDLL('librt.so.1',use_errno=True); q=l.mq_open(b'/q',66,384,None); b=ctypes.create_string_buffer(8192); print(l.mq_send(q,b'hi',2,0), l.mq_receive(q,b,8192,None), b.value)"
        ),
    ),
    case(
        "posix-queue-between-execs",
        _PY.format("import ctypes; l=ctypes.CDLL('librt.so.1'); q=l.mq_open(b'/q',66,438,None); l.mq_send(q,b'hi',2,0)"),
        _PY.format(
            "import ctypes; l=ctypes.CDLL('librt.so.1'); q=l.mq_open(b'/q',2); b=ctypes.create_string_buffer(8192); print(l.mq_receive(q,b,8192,None))"
        ),
    ),
    case("sysv-shared-memory-between-execs", "ipcmk -M 8192 >/dev/null", "ipcs -m | grep -c 8192"),
    case("sysv-limits", "ipcs -l | grep -c max"),
    case("shared-memory-between-execs", "echo x > /dev/shm/a", "cat /dev/shm/a"),
    case("shared-memory-by-a-user", "echo x > /dev/shm/a && stat -c '%U %a' /dev/shm/a", user="alice"),
    case(
        "fifo-between-execs", "mkfifo /tmp/p; (cat /tmp/p > /tmp/got) >/dev/null 2>&1 &", "echo through > /tmp/p; sleep 0.3; cat /tmp/got"
    ),
    case(
        "unix-socket-between-execs",
        "socat UNIX-LISTEN:/tmp/s,fork EXEC:'id -un' >/dev/null 2>&1 &",
        "sleep 0.3; socat - UNIX-CONNECT:/tmp/s </dev/null",
    ),
    case(
        "unix-socket-peer-is-a-user",
        "socat UNIX-LISTEN:/tmp/s,fork,mode=666 SYSTEM:'echo \\$SOCAT_PEERADDR; id -un' >/dev/null 2>&1 & sleep 0.3; su alice -c 'socat - UNIX-CONNECT:/tmp/s </dev/null' | tail -1",
    ),
    case(
        "unix-socket-without-permission",
        "socat UNIX-LISTEN:/tmp/s,fork,mode=600 EXEC:id >/dev/null 2>&1 & sleep 0.3; su alice -c 'socat - UNIX-CONNECT:/tmp/s </dev/null'",
        refused=True,
    ),
    case(
        "credentials-of-another-user",
        _PY.format(
            "import socket,struct,array; a,b=socket.socketpair(socket.AF_UNIX,socket.SOCK_DGRAM); b.setsockopt(1,16,1); a.sendmsg([b'x'],[(1,2,struct.pack('3i',__import__('os').getpid(),1500,1500))]); m=b.recvmsg(10,100); print(struct.unpack('3i',m[1][0][2])[1:])"
        ),
    ),
    case(
        "memfd-and-seals",
        _PY.format(
            "import os,fcntl; f=os.memfd_create('x',os.MFD_ALLOW_SEALING); os.write(f,b'a'); fcntl.fcntl(f,1033,15); print(fcntl.fcntl(f,1034))"
        ),
    ),
    case(
        "memfd-exec",
        "python3 -c \"import os; f=os.memfd_create('x'); os.write(f,open('/usr/bin/id','rb').read()); os.execve(f,['id','-u'],{})\"",
    ),
    case("splice-and-tee", _PY.format("import os; r,w=os.pipe(); f=os.open('/etc/hostname',0); print(os.splice(f,w,5)>0)")),
    case("sendfile", _PY.format("import os; a=os.open('/etc/passwd',0); b=os.open('/tmp/o',65); print(os.sendfile(b,a,0,10))")),
    case("copy-file-range", _PY.format("import os; a=os.open('/etc/passwd',0); b=os.open('/tmp/o',65); print(os.copy_file_range(a,b,10))")),
    case("pipe-size", _PY.format("import fcntl,os; r,w=os.pipe(); print(fcntl.fcntl(w,1031,1<<20)>=1<<20, fcntl.fcntl(w,1032)>=1<<20)")),
    case("pipe-size-by-a-user", _PY.format("import fcntl,os; r,w=os.pipe(); print(fcntl.fcntl(w,1031,1<<20)>=1<<20)"), user="alice"),
    case("inotify-limits", "cat /proc/sys/fs/inotify/max_user_watches /proc/sys/fs/inotify/max_user_instances"),
    case("inotify-many-watches", "mkdir -p /tmp/w && cd /tmp/w && mkdir $(seq 500) && timeout 1 inotifywait -qq -r -t 1 /tmp/w; echo $?"),
    case(
        "epoll-many",
        _PY.format(
            "import select,os; e=select.epoll(); p=[os.pipe() for _ in range(200)]; [e.register(r,1) for r,w in p]; [os.write(w,b'x') for r,w in p]; print(len(e.poll(1,500)))"
        ),
    ),
    case(
        "timers",
        _PY.format(
            "import signal,time; signal.signal(signal.SIGALRM,lambda *a: print('rang')); signal.setitimer(signal.ITIMER_REAL,0.05); time.sleep(0.2)"
        ),
    ),
    case(
        "clock-resolutions",
        _PY.format("import time; print(time.clock_getres(time.CLOCK_MONOTONIC), time.clock_gettime(time.CLOCK_BOOTTIME)>0)"),
    ),
    case("clock-set-refused", _PY.format("import time; time.clock_settime(time.CLOCK_REALTIME,0)"), refused=True),
    case("adjtimex-read", _PY.format("import ctypes; b=ctypes.create_string_buffer(208); print(ctypes.CDLL(None).adjtimex(b)>=0)")),
    case("getrandom", _PY.format("import os; print(len(os.getrandom(16)))")),
    case(
        "futex-and-threads",
        _PY.format(
            "import threading,queue; q=queue.Queue(); t=threading.Thread(target=lambda: q.put(1)); t.start(); print(q.get(timeout=5))"
        ),
    ),
    case(
        "scheduling-policies",
        _PY.format("import os; os.sched_setscheduler(0,os.SCHED_BATCH,os.sched_param(0)); print(os.sched_getscheduler(0))"),
    ),
    case("affinity", _PY.format("import os; os.sched_setaffinity(0,[0]); print(os.sched_getaffinity(0))")),
    case("nice-of-others-refused", 'sleep 100 & su alice -c "renice -n 5 -p $!"', refused=True),
    case("setpgid-and-killpg", "setsid -w sh -c 'sleep 100 & sleep 100 & kill 0' 2>/dev/null; echo $?"),
    case(
        "signal-with-value",
        _PY.format(
            "import signal,os; signal.pthread_sigmask(signal.SIG_BLOCK,[34]); os.kill(os.getpid(),34); print(signal.sigwaitinfo([34]).si_uid)"
        ),
    ),
    case("signal-between-users-refused", 'sleep 100 & su alice -c "kill $!"', refused=True),
    case("signal-from-root-to-a-user", "su alice -c 'exec sleep 100' & sleep 0.3; kill $(pgrep -u alice -x sleep) && echo sent"),
    case(
        "wait-for-a-stopped-child",
        _PY.format(
            "import os,signal; p=os.fork()\nif p==0: os.kill(os.getpid(),19); os._exit(3)\nw=os.waitpid(p,os.WUNTRACED); os.kill(p,18); print(os.WIFSTOPPED(w[1]), os.waitpid(p,0)[1]>>8)"
        ),
    ),
    case("waitid-and-rusage", _PY.format("import os; p=os.posix_spawn('/bin/true',['true'],{}); print(os.wait4(p,0)[1])")),
    case(
        "vm-overcommit",
        _PY.format("import mmap; m=mmap.mmap(-1,8<<30,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS|0x4000); print(len(m)>>30)"),
    ),
    case(
        "huge-pages-refused", _PY.format("import mmap; mmap.mmap(-1,2<<20,flags=mmap.MAP_PRIVATE|mmap.MAP_ANONYMOUS|0x40000)"), refused=True
    ),
    case("madvise", _PY.format("import mmap; m=mmap.mmap(-1,1<<20); m.madvise(mmap.MADV_DONTNEED); print('done')")),
    case("executable-memory", _PY.format("import mmap; m=mmap.mmap(-1,4096,prot=7); print('made')")),
    case(
        "mlockall-over-the-limit",
        _PY.format(
            "import ctypes; l=ctypes.CDLL(None,use_errno=True); import resource; resource.setrlimit(resource.RLIMIT_MEMLOCK,(0,0)); print(l.mlockall(1), ctypes.get_errno())"
        ),
    ),
    case(
        "shm-locked", _PY.format("import ctypes; l=ctypes.CDLL(None,use_errno=True); i=l.shmget(0,4096,0o1600); print(l.shmctl(i,11,None))")
    ),
    case("acl-of-a-process-file", "ls -l /proc/self/exe | cut -c1-10"),
    case("core-pattern-read-only", "echo '|/bin/sh' > /proc/sys/kernel/core_pattern", refused=True),
    case("dumpable-after-setuid", "su alice -c 'cat /proc/self/status | grep -c CoreDumping'"),
    case("alarm-kills", "python3 -c 'import signal,time; signal.alarm(1); time.sleep(9)'", exits=142),
    case("segfault-code", "python3 -c 'import ctypes; ctypes.string_at(0)'", exits=139),
    case("abort-code", "python3 -c 'import os; os.abort()'", exits=134),
    case("sigpipe", "yes | head -1"),
    case("sigpipe-code", "bash -c 'yes | head -1 >/dev/null; echo ${PIPESTATUS[0]}'"),
    case("fuse-device", "ls /dev/fuse", refused=True),
    case("keyring-of-a-session", "keyctl new_session", refused=True),
    case("binfmt-scripts", "printf '#!/usr/bin/env python3\\nprint(7)\\n' > /tmp/s && chmod +x /tmp/s && /tmp/s"),
    case("interpreter-with-arguments", "printf '#!/usr/bin/awk -f\\nBEGIN {print 8}\\n' > /tmp/s && chmod +x /tmp/s && /tmp/s"),
    case("script-without-interpreter-line", "printf 'echo 9\\n' > /tmp/s && chmod +x /tmp/s && /tmp/s"),
    case("script-of-a-missing-interpreter", "printf '#!/no/such\\n' > /tmp/s && chmod +x /tmp/s && /tmp/s", exits=127),
    case("noexec-file", "echo 'echo x' > /tmp/s && /tmp/s", exits=126),
    case("setuid-script-is-not-honoured", "printf '#!/bin/sh\\nid -u\\n' > /tmp/s && chmod 4755 /tmp/s && su alice -c /tmp/s"),
    case("setuid-program-of-a-user-for-root", "cp /usr/bin/id /tmp/i && chown alice /tmp/i && chmod 4755 /tmp/i && /tmp/i -u"),
    case("setuid-under-no-new-privs", "setpriv --no-new-privs --reuid=1500 --regid=1500 --clear-groups /opt/case/setuid-id -u"),
    case(
        "file-capability-under-no-new-privs",
        "su alice -c 'setpriv --no-new-privs /opt/case/cat-of-capability /etc/shadow'",
        refused=True,
    ),
    case("securebits", "setpriv --securebits=+noroot,+noroot_locked sh -c 'grep CapEff /proc/self/status' | tr -d '\\t'"),
    case("capability-bounding-set-limits-setuid", "capsh --drop=cap_chown --user=alice -- -c '/opt/case/setuid-id -u'"),
    case(
        "ambient-net-raw-pings",
        "setpriv --reuid=alice --regid=alice --init-groups --inh-caps=+net_raw --ambient-caps=+net_raw python3 -c 'import socket; socket.socket(2,3,1); print(1)'",
    ),
)
