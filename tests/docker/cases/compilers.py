"""Compilers, interpreters and build tools, run as people run them."""

from __future__ import annotations

from tests.docker.case import case

CASES = (
    case("gcc", "cd /tmp && printf '#include <stdio.h>\\nint main(){puts(\"hi\");}' > a.c && gcc -O2 -o a a.c && ./a"),
    case("make", "cd /tmp && printf 'all: a b\\na b:\\n\\t@echo $@ > $@\\n' > Makefile && make -s -j4 && cat a b"),
    case("make-by-a-user", "cd && printf 'all:\\n\\t@id -un\\n' > Makefile && make -s", user="alice"),
    case(
        "shared-library",
        "cd /tmp && echo 'int f(){return 7;}' > f.c && gcc -shared -fPIC -o libf.so f.c && python3 -c \"import ctypes; print(ctypes.CDLL('/tmp/libf.so').f())\"",
    ),
    case(
        "ld-preload",
        "cd /tmp && echo 'int getuid(){return 77;}' > f.c && gcc -shared -fPIC -o libf.so f.c && LD_PRELOAD=/tmp/libf.so id -ru",
    ),
    case("static-binary", "cd /tmp && echo 'int main(){return 5;}' > a.c && gcc -static -o a a.c && ./a", exits=5),
    case(
        "address-sanitizer",
        "cd /tmp && echo 'int main(){int*p=new_();}' > /dev/null; echo 'int main(int c,char**v){int a[2];return a[c+5];}' > a.c && gcc -fsanitize=address -o a a.c && ./a 2>&1 | grep -c stack-buffer-overflow",
    ),
    case(
        "leak-sanitizer",
        "cd /tmp && printf '#include <stdlib.h>\\nvoid*volatile p;int main(){p=malloc(9);p=0;return 0;}' > a.c && gcc -fsanitize=leak -o a a.c && ./a 2>&1 | grep -c 'LeakSanitizer'",
    ),
    case("threads-sanitizer", "cd /tmp && echo 'int main(){return 0;}' > a.c && gcc -fsanitize=thread -o a a.c && ./a; echo $?"),
    case(
        "openmp",
        "cd /tmp && printf '#include <omp.h>\\n#include <stdio.h>\\nint main(){printf(\"%%d\\\\n\",omp_get_max_threads());}' > a.c && gcc -fopenmp -o a a.c && ./a",
    ),
    case(
        "java",
        "cd /tmp && echo 'public class A{public static void main(String[] a){System.out.println(6*7);}}' > A.java && java -version 2>&1 | grep -c -i openjdk | sed 's/[0-9]*/n/'",
    ),
    case("node", "node -e 'console.log(6*7)'"),
    case(
        "node-worker-threads",
        "node -e \"const {Worker}=require('worker_threads'); new Worker('require(\\\"worker_threads\\\").parentPort.postMessage(42)',{eval:true}).on('message',console.log)\"",
    ),
    case("node-child-process", "node -e \"require('child_process').exec('id -un',(e,o)=>console.log(o.trim()))\""),
    case(
        "node-child-uid",
        "node -e \"require('child_process').execFile('id',['-un'],{uid:1500,gid:1500},(e,o)=>console.log(e?e.code:o.trim()))\"",
    ),
    case("python-multiprocessing", 'python3 -c "from multiprocessing import Pool; print(sum(Pool(2).map(abs,[-1,-2])))"'),
    case(
        "python-shared-memory",
        'python3 -c "from multiprocessing import shared_memory as s; m=s.SharedMemory(create=True,size=1<<20); print(len(m.buf)); m.unlink()"',
    ),
    case("python-semaphore", 'python3 -c "import multiprocessing as m; s=m.Semaphore(1); print(s.acquire(False), s.acquire(False))"'),
    case("python-ssl", "python3 -c \"import ssl; ssl.create_default_context(); print('ok')\""),
    case(
        "python-sqlite",
        "python3 -c \"import sqlite3; c=sqlite3.connect('/tmp/a.db'); c.execute('pragma journal_mode=wal'); c.execute('create table t(a)'); print(c.execute('select count(*) from t').fetchone())\"",
    ),
    case("python-compileall", "python3 -m compileall -q /usr/lib/python3/dist-packages/psutil; echo $?"),
    case("python-timezone", "TZ=America/New_York python3 -c \"import time; print(time.strftime('%H %Z', time.localtime(0)))\""),
    case("perl", 'perl -e \'print join(",", map {$_*2} 1..3), "\\n"\''),
    case("perl-becomes-a-user", "perl -MPOSIX -e 'setgid(1500); setuid(1500); print \"$< $>\\n\"'"),
    case("php", "php -r 'echo 6*7, PHP_EOL;'"),
    case("php-posix-less", "php -r 'echo get_current_user(), PHP_EOL;'"),
    case("bash-process-substitution", "bash -c 'diff <(echo a) <(echo a) && echo same'"),
    case("bash-coproc", "bash -c 'coproc cat; echo hi >&${COPROC[1]}; read -u ${COPROC[0]} l; echo $l'"),
    case("dev-stdout-and-stderr", "echo a > /dev/stdout; echo b > /dev/stderr; echo c > /dev/fd/1"),
    case("dev-stdout-by-a-user", "echo a > /dev/stdout", user="alice"),
    case("dev-stdout-after-su", "su alice -c 'echo a > /dev/stdout' 2>/dev/null; echo $?"),
    case("dev-tty-without-terminal", "echo a > /dev/tty", refused=True),
    case("here-document-and-pipes", "cat <<X | tr a-z A-Z | rev\nabc\nX"),
    case("large-arguments", "sh -c 'echo ${#1}' sh $(head -c 100000 /dev/zero | tr '\\0' x)"),
    case("many-arguments", "seq 50000 | xargs echo | wc -c"),
    case(
        "git",
        "cd /tmp && git init -q r && cd r && git config user.email x@x && git config user.name x && echo a > a && git add . && git commit -qm one && git log --format=%s",
    ),
    case("git-safe-directory", "cd /tmp && git init -q r && chown -R alice r && git -C r status --porcelain", refused=True),
    case(
        "git-worktree",
        "cd /tmp && git init -q r && cd r && git -c user.name=x -c user.email=x@x commit -q --allow-empty -m x && git worktree add -q ../w && ls -A ../w",
    ),
    case(
        "patch-and-diff",
        "cd /tmp && echo a > a && echo b > b && diff -u a b > p; patch -s a p 2>/dev/null || busybox patch a p >/dev/null; cat a",
    ),
    case("sqlite", "sqlite3 /tmp/d 'create table t(a); insert into t values (41); select a+1 from t'"),
    case("jq-and-bc", "echo '{\"a\":[1,2]}' | jq -c .a; echo '2^64' | bc"),
    case("busybox", "busybox sh -c 'echo $((6*7)); busybox id -u'"),
    case("openssl", "openssl rand -hex 4 | wc -c; echo a | openssl dgst -sha256 | cut -d' ' -f2"),
    case(
        "gpg-agent",
        "gpg --batch --passphrase '' --quick-gen-key a@a default default 2>/dev/null; echo x | gpg --batch -ear a@a --trust-model always 2>/dev/null | gpg -d 2>/dev/null",
        user="alice",
    ),
    case("locale", "locale charmap; echo ${LANG:-unset}"),
    case("timezone", "date -d @0 +%Z; readlink /etc/localtime"),
)
