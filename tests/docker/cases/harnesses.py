"""What task harnesses and agents do: a repository that root owns, edited and tested, packages without a network, browsers, large inputs."""

from __future__ import annotations

from tests.docker.case import case, nothing

_CHROMIUM = "chromium --headless --disable-gpu --no-first-run --user-data-dir=/tmp/chromium"
_WHEELS = "--no-index -f /srv/wheels -q --disable-pip-version-check"

CASES = (
    case("testbed-belongs-to-root", "stat -c '%U %G %a' /testbed /testbed/.git /testbed/lib.py", cwd="/testbed"),
    case("testbed-status", "git status --porcelain && git log --format=%s", cwd="/testbed"),
    case(
        "testbed-edit-and-diff",
        "sed -i 's/ + 1//' lib.py && git diff --stat && git diff | git apply -R --check && git stash -q && git stash pop -q && git diff --numstat",
        cwd="/testbed",
    ),
    case(
        "testbed-patch",
        "printf -- '--- a/lib.py\\n+++ b/lib.py\\n@@ -1,2 +1,2 @@\\n def double(n):\\n-    return n + n + 1\\n+    return n + n\\n' > /tmp/p && git apply /tmp/p && git diff --numstat",
        cwd="/testbed",
    ),
    case(
        "testbed-tests",
        f"python3 -m venv /tmp/v && /tmp/v/bin/pip install {_WHEELS} pytest",
        "/tmp/v/bin/python -m pytest -q -p no:cacheprovider 2>&1 | tail -1 | sed 's/ in .*//'",
        "sed -i 's/ + 1//' lib.py; /tmp/v/bin/python -m pytest -q 2>&1 | tail -1 | sed 's/ in .*//'; ls -A | sort | tr '\\n' ' '",
        cwd="/testbed",
    ),
    case("testbed-by-a-user-is-refused", "touch /testbed/x", user="alice", refused=True),
    case("testbed-git-by-a-user", "git -C /testbed status", user="alice", refused=True),
    case(
        "pip-from-a-folder",
        f"python3 -m venv /tmp/v && /tmp/v/bin/pip install {_WHEELS} six && /tmp/v/bin/python -c 'import six; print(six.PY3)'",
    ),
    case(
        "pip-into-the-system",
        f"pip install {_WHEELS} --break-system-packages six 2>/dev/null; python3 -c 'import six; print(six.__file__)' | cut -d/ -f1-4",
    ),
    case(
        "pip-user-install",
        f"pip install {_WHEELS} --user --break-system-packages six 2>/dev/null; python3 -c 'import six; print(six.__file__)' | cut -d/ -f1-4",
        user="alice",
    ),
    case("npm-version", "npm --version >/dev/null; echo $?"),
    case(
        "npm-install-a-folder",
        "mkdir -p /tmp/a /tmp/b && cd /tmp/a && npm init -y >/dev/null && echo 'module.exports=42' > index.js && cd /tmp/b && npm init -y >/dev/null && npm install --offline --no-audit --no-fund ../a >/dev/null 2>&1; node -e 'console.log(require(\"a\"))'",
    ),
    case(
        "npm-scripts-run-as-owner",
        'mkdir /tmp/s && chown alice /tmp/s && cd /tmp/s && echo \'{"scripts":{"who":"id -un"}}\' > package.json && npm run -s who',
    ),
    case(
        "npm-global",
        "mkdir -p /tmp/a && cd /tmp/a && npm init -y >/dev/null && npm install -g --offline --no-audit --no-fund /tmp/a >/dev/null 2>&1; npm ls -g --depth 0 2>/dev/null | grep -c 'a@'",
    ),
    case(
        "chromium-without-its-sandbox",
        f"{_CHROMIUM} --no-sandbox --dump-dom 'data:text/html,<p id=a>hello</p>' 2>/dev/null | grep -o hello",
    ),
    case(
        "chromium-with-its-sandbox",
        f"timeout 20 {_CHROMIUM} --dump-dom 'data:text/html,<p>hello</p>' 2>/dev/null",
        user="alice",
        refused=True,
        normalize=nothing,
    ),
    case(
        "chromium-javascript",
        f"{_CHROMIUM} --no-sandbox --dump-dom 'data:text/html,<script>document.write(6*7)</script>' 2>/dev/null | grep -o '42</body>'",
    ),
    case(
        "chromium-screenshot",
        f"cd /tmp && {_CHROMIUM} --no-sandbox --screenshot=/tmp/s.png --window-size=200,100 'data:text/html,<p>hello' 2>/dev/null; file -b /tmp/s.png | cut -d, -f1-2",
    ),
    case(
        "chromium-reads-a-server",
        f"mkdir /tmp/w; echo '<p>served' > /tmp/w/a.html; nohup python3 -m http.server 8000 -d /tmp/w >/dev/null 2>&1 & sleep 1; {_CHROMIUM} --no-sandbox --dump-dom http://localhost:8000/a.html 2>/dev/null | grep -o served",
    ),
    case("arguments-of-a-mebibyte", ("sh", "-c", "echo $# ${#1}", "sh", *["x" * 100_000] * 10)),
    case("one-argument-over-the-kernels-limit", ("sh", "-c", ": " + "x" * 140_000), refused=True, normalize=nothing),
    case("environment-of-100-kilobytes", "echo ${#BIG}", env={"BIG": "x" * 100_000}),
    case("script-of-100-kilobytes", "true " + "x" * 100_000 + "; echo ran"),
    case("output-of-both-streams", "for i in 1 2 3; do echo out $i; echo err $i >&2; done"),
    case("input-of-a-megabyte", "wc -c; sha256sum </dev/null | cut -c1-8", input=b"x" * 1_000_000),
    case("arguments-with-any-text", ("printf", "%s|", "a\nb", "ü", "*", "$HOME", "`id`", "--", "-n")),
    case("heredoc-file-by-an-agent", "cat > /tmp/f.py <<'EOF'\nprint('it''s \"quoted\" $HOME')\nEOF\npython3 /tmp/f.py"),
    case(
        "apt-then-build-then-test",
        "apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq tree >/dev/null 2>&1; tree --version | cut -d' ' -f1",
    ),
    case(
        "user-made-and-used-in-the-next-exec",
        "useradd -m -s /bin/bash runner && echo 'runner ALL=(ALL) NOPASSWD:ALL' > /etc/sudoers.d/runner",
        "su - runner -c 'sudo -n id -un; pwd'",
    ),
    case(
        "background-server-and-its-log",
        "nohup python3 -u -m http.server 8123 > /tmp/server.log 2>&1 &",
        "for i in $(seq 50); do curl -s -o /dev/null localhost:8123 && break; sleep 0.1; done; grep -c 'GET / HTTP' /tmp/server.log",
    ),
    case(
        "pid-of-a-background-process-stays",
        "sleep 1000 & echo $! > /tmp/pid",
        "test -d /proc/$(cat /tmp/pid) && kill $(cat /tmp/pid) && echo killed",
    ),
    case("state-of-one-exec-does-not-reach-the-next", "cd /tmp; export A=1; alias x=y", "pwd | grep -c tmp; echo ${A:-unset}"),
    case("files-of-one-exec-reach-the-next", "echo x > /tmp/x; mkdir -p /opt/new; chown alice /opt/new", "cat /tmp/x; stat -c %U /opt/new"),
    case(
        "editors",
        "printf 'x\\n' > /tmp/a; vi -es -c '%s/x/y/' -c wq /tmp/a </dev/null >/dev/null 2>&1; cat /tmp/a; printf ',s/y/z/\\nw\\nq\\n' | ed -s /tmp/a 2>/dev/null || sed -i s/y/z/ /tmp/a; cat /tmp/a",
    ),
    case(
        "find-and-delete-as-root",
        "su alice -c 'mkdir -m 700 -p /tmp/t/d; touch /tmp/t/d/f'; find /tmp/t -type f -delete; find /tmp/t | wc -l",
    ),
    case("time-zone-by-environment", "date -d @0 +%H:%M", env={"TZ": "Asia/Tokyo"}),
)
