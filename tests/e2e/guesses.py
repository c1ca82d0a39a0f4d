"""The table of guesses: for each purpose, what a user of docker, Modal or E2B types first, and its result here.

``Guess.typed`` is a command line after `holdfast`, or an expression of the SDK with ``client`` and ``sandbox`` as variables. With ``works``
it succeeds, and this text is in its output; with ``says`` it is refused, and this text is in the first line of the error. Owns only the
table; `test_guesses` runs it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Guess(NamedTuple):
    """One row."""

    purpose: str
    habit: Literal["docker", "Modal", "E2B", "subprocess"]
    typed: str
    works: str | None = None
    says: str | None = None


COMMAND_LINE = [
    Guess("run one command and throw the machine away", "docker", "run --rm host echo hi", works="hi"),
    Guess("run in the background", "docker", "run -d --name NEW host sleep 60", works="NEW"),
    Guess("limit memory and processors", "docker", "run --rm -m 512m --cpus 1 host echo limited", works="limited"),
    Guess("set a variable", "docker", "run --rm -e A=b host printenv A", works="b"),
    Guess("mount a folder", "docker", "run -v /a:/b host ls", says="holdfast cp"),
    Guess("list what runs", "docker", "ps", works="SB"),
    Guess("list images", "docker", "images", works="host"),
    Guess("run a command inside", "docker", "exec SB uname", works="Linux"),
    Guess("run a command inside, with dashes", "docker", "exec SB -- uname -s", works="Linux"),
    Guess("run in another directory", "docker", "exec -w /usr SB pwd", works="/usr"),
    Guess("run as another user", "docker", "exec -u 1000 SB id -u", works="1000"),
    Guess("use a terminal", "docker", "exec -t SB tty", works="/dev/pts/"),
    Guess("look at it", "docker", "inspect SB", works="SB"),
    Guess("see its processes", "docker", "top SB", works="PID"),
    Guess("see what it uses", "docker", "stats SB", works="SB"),
    Guess("open a shell by ssh", "docker", "ssh SB", says="holdfast shell"),
    Guess("attach to it", "docker", "attach SB", says="holdfast logs -f"),
    Guess("kill it", "docker", "kill SB", says="holdfast rm"),
    Guess("build an image", "docker", "build .", says="there is no Dockerfile"),
    Guess("remove what is left", "docker", "prune", says="rm --all"),
    Guess("make one that ends by itself", "E2B", "create host --timeout 5", says="--lifetime"),
]
SDK = [
    Guess("make one with a name", "docker", "client.create_sandbox('host', name='x')", says="sandbox_id"),
    Guess("make one that ends by itself", "E2B", "client.create_sandbox('host', timeout=300)", says="lifetime_s"),
    Guess("make one with variables", "E2B", "client.create_sandbox('host', envs={'A': 'b'})", says="use env"),
    Guess("make one with labels", "E2B", "client.create_sandbox('host', metadata={'a': 'b'})", says="use labels"),
    Guess("limit its memory", "docker", "client.create_sandbox('host', mem_limit='1g')", says="use memory"),
    Guess("open its ports", "Modal", "client.create_sandbox('host', encrypted_ports=[80])", says="tunnel"),
    Guess("run a command in words", "Modal", "sandbox.exec('echo', 'hi').stdout", works="hi"),
    Guess("run a command with pipes", "E2B", "sandbox.exec('echo hi | tr a-z A-Z').stdout", works="HI"),
    Guess("run in another directory", "Modal", "sandbox.exec('pwd', workdir='/usr')", says="use cwd"),
    Guess("raise when it fails", "subprocess", "sandbox.exec('false', check=True)", says="result.check()"),
    Guess("have one stream", "subprocess", "sandbox.exec('echo a; echo b >&2', stderr='stdout').output", works="a\\nb"),
    Guess("run in the background", "E2B", "sandbox.exec('sleep 9', background=True)", says="start()"),
    Guess("hear output as it comes", "E2B", "sandbox.exec('ls', on_stdout=print)", says="start()"),
    Guess("have a terminal for a command", "docker", "sandbox.exec('ls', tty=True)", says="shell(tty=True)"),
    Guess("have a terminal that lives", "Modal", "sandbox.shell(tty=True).run('test -t 0').exit_code", works="0"),
    Guess("change the size of a terminal", "E2B", "sandbox.shell(tty=True).resize(cols=100, rows=40)", works="None"),
    Guess("type into it", "E2B", "sandbox.shell().write('y')", says="has no terminal"),
    Guess("run in a shell elsewhere", "subprocess", "sandbox.shell().run('pwd', cwd='/usr')", says="run('cd DIR')"),
    Guess("write a file", "E2B", "sandbox.files.write('/tmp/g', 'text').size_bytes", works="4"),
    Guess("write a file by words", "E2B", "sandbox.files.write('/tmp/g', content='x')", says="use data"),
    Guess("read a file as text", "E2B", "sandbox.files.read('/etc/passwd', format='text')", says="read_text()"),
    Guess("watch a directory", "E2B", "sandbox.files.watch('/tmp', recursive=True).close()", works="None"),
    Guess("copy inside", "docker", "sandbox.files.copy('/etc/passwd', '/tmp/copied').entries", works="1"),
    Guess("remove a tree", "E2B", "sandbox.files.remove('/tmp/none', recursive=True, missing_ok=True)", works="None"),
    Guess("reach a port", "Modal", "sandbox.tunnel(1, timeout=3)", says="use wait_s"),
    Guess("reach a port where nothing listens", "Modal", "sandbox.tunnel(1, wait_s=0)", says="port 1"),
    Guess("have it live longer", "E2B", "sandbox.set_lifetime(timeout=600)", says="use lifetime_s"),
    Guess("begin anew", "docker", "sandbox.reset().ready", works="True"),
    Guess("run many at once", "Modal", "client.map(str, [1, 2], max_workers=2)", says="use concurrency"),
    Guess("find mine", "E2B", "client.list_sandboxes(metadata={'a': 'b'})", says="use labels"),
]
