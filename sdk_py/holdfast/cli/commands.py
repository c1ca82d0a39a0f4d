"""The commands of the command line: names, options, and the function of each.

Owns the list of commands and their texts; ``command_line`` parses command lines with it. Functions are named ``module:function`` below
``subcommands`` and imported when they are used.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.cli.command_line import HELP, JSON, Command, Delegated, Option, columns, duration, number

NETWORKS = ("none", "bridge", "internet")

ALIASES = {
    "ls": "list",
    "ps": "list",
    "images": "image list",
    "pull": "image pull",
    "rmi": "image rm",
    "import": "image import",
    "image ls": "image list",
    "image remove": "image rm",
    "image load": "image import",
    "image build": "build",
    "load": "image import",
    "tag": "image tag",
    "save": "image save",
    "commit": "snapshot",
    "key ls": "key list",
    "project ls": "project list",
    "unpause": "resume",
}
GROUPS = ("container", "sandbox")
"""Docker's words that may precede a command; they have no effect."""

EPILOG = """\
exit codes:
  0    done
  1    `rm --all` was answered with no, a RUN of `build` failed, `up` had to kill a process, or a check of `recipes` failed
  2    wrong usage, arguments, settings or local files; no service is configured
  125  the service does not answer, refuses or fails; the sandbox or session failed or does not exist; a check of `doctor` failed
  130  interrupted
`run`, `exec` and `shell` end with the exit code of the command: 126 if it cannot be executed, 127 if it is not found, 124 after a
time-out, 128+n after signal n.

SANDBOX is an id, or the beginning of a generated one. --json may also stand before the command.
The address and key of the service come from HOLDFAST_URL and HOLDFAST_API_KEY, else from the file .holdfast/env of `holdfast up`.
"""


_ENV = (
    Option("-e --env", "set a variable; NAME alone takes its value from this environment", "NAME=VALUE", many=True),
    Option("--env-file", "set the variables in a file with NAME=VALUE lines", "FILE", many=True),
)
_PLACE = (Option("-w --cwd --workdir", "working directory", "DIR"), Option("-u --user", "user name or id", "USER"))
_MAKING = (
    Option("--id --name", "id of the sandbox (default: a generated id)", "ID"),
    Option("--cpu --cpus", "limit of CPU, in cores: 2, 0.5, 500m", "CORES"),
    Option("-m --memory", "limit of memory: 512m, 4g, 512Mi, 4Gi", "SIZE"),
    Option("--disk", "limit of disk space: 10g, 10Gi", "SIZE"),
    *_ENV,
    Option("--ulimit", "set a limit of every process in the sandbox", "NAME=SOFT:HARD", many=True),
    Option("--shm-size", "how large /dev/shm may grow: 1g", "SIZE"),
    Option("-l --label", "set a label", "NAME=VALUE", many=True),
    Option("--record", "record what happens in it, for `replay`"),
    Option("--ready-timeout", "how long to wait until the sandbox is ready", "SECONDS", number),
    Option("--lifetime", "delete the sandbox after this time", "SECONDS", number),
    Option("--idle-timeout", "delete the sandbox when it was idle for this time", "SECONDS", number),
    Option("--network --net", "network access: internet (or bridge, the same), or none (default); without a value: internet", "MODE",
           bare="internet", values=NETWORKS),
)  # fmt: skip
_PULL = Option("--pull", "fetch the image from its registry first: always, if it is missing (default), or never", "WHEN",
               values=("always", "missing", "never"))  # fmt: skip
_FORMAT = Option("-f --format", "print this template of Go for each: {{.State.Status}}, {{json .Config}}", "TEMPLATE")
_ROWS = Option("--format", "print this template of Go for each, json, or table and a template: {{.ID}} {{.Status}}", "TEMPLATE")
_DOCKER = Option("--docker", "with docker's names of fields")
_RUNNING = (
    Option("-i --stdin --interactive", "pass standard input on; without it the command reads nothing"),
    Option("-t --tty", "run the command on a terminal, which also receives what is typed here"),
    Option("-d --detach", "start the command and return; `logs` shows its output"),
    Option("--timeout", "end the command after this time, with exit code 124", "SECONDS", number),
    Option("--raw", "pass control sequences to this terminal; files and pipes always get raw bytes"),
    Option("--login", "run the command in a login shell"),
    Option("-c", "a command line for the sandbox's shell, in place of COMMAND", "STRING"),
)
_RAW = Option("--raw", "pass control sequences to this terminal")
_OF_OWNER = (
    Option("--owner", "those of this owner, with an operator's key or that of another member of the same project", "OWNER"),
    Option("--project", "those in this project, with a key that is limited to none", "PROJECT"),
)
_SHARING = Option("--sharing", "what members may do with each other's sandboxes: none (default), read, use", "WHAT")
_SHARED = Option("--shared", "for all owners; needs an operator's key")
_NO_EFFECT = "no effect; accepted for compatibility with docker"


def _lines(text: str) -> int | None:
    return None if text == "all" else int(number(text))


_COMMANDS = {command.name: command for command in (
    Command(
        "run", "create a sandbox and run a command in it", "run:run", "IMAGE",
        Option("--rm", "delete the sandbox when the command has ended, whatever else runs in it"),
        Option("--entrypoint", "the program to run; the words after IMAGE are its arguments", "PROGRAM", closes=True),
        *_RUNNING, *_MAKING, *_PLACE, _PULL,
        inner="[COMMAND ARGUMENTS...]",
        more="""
The sandbox continues to exist unless --rm is given; -d prints its id and returns. Without COMMAND the image's own command runs (with -t,
a shell). The image's variables, user and directory apply; its ENTRYPOINT is not put before a COMMAND. -w creates DIR if it does not exist.
""",
    ),
    Command("create", "create a sandbox and print its id", "sandboxes:create", "IMAGE", *_MAKING, _PULL),
    Command(
        "exec", "run a command in a sandbox", "execute:exec_", "SANDBOX", *_RUNNING, *_ENV, *_PLACE,
        inner="[--] COMMAND ARGUMENTS...",
        more="""
COMMAND runs without a shell: for pipes or variables write -c STRING, or bash -c STRING. Background processes that the command leaves
continue to run.
-d prints the id of the command, for `logs`.
""",
    ),
    Command(
        "shell", "open a terminal in a sandbox", "execute:shell", "SANDBOX",
        Option("--attach", "attach to the terminal of this name, or create it; it keeps running", "NAME"),
        Option("-l --login", "a login shell"), *_ENV, *_PLACE,
        more="The same as exec -it SANDBOX bash; sh if the image has no bash.",
    ),
    Command(
        "cp", "copy a file or directory: LOCAL SANDBOX:PATH, or SANDBOX:PATH LOCAL", "cp:copy", "SOURCE TARGET",
        Option("-L --follow-link", "follow a local link that is named as the source"),
        Option("-q --quiet", "do not report what is left out"),
        Option("-r -a -R --recursive --archive", "no effect; directories are always copied completely, with their modes"),
        more="""
As docker cp does:
  A file is copied to the file TARGET, or into the directory TARGET.
  A directory becomes TARGET if that does not exist, else TARGET/DIR; DIR/. copies only the content.
  The parent directory of TARGET must exist. - is a tar archive on standard input or output.
  Remote paths may be relative to the sandbox's working directory.
""",
    ),
    Command(
        "port", "forward a local port to a port of a sandbox, until interrupted", "ports:port", "SANDBOX PORT",
        Option("-R --reverse", "forward a port of the sandbox to a port of this machine, as ssh -R does"),
        Option("--public", "print a link at which browsers reach the port through the service, and return"),
        Option("--expires", "how long the link of --public works (default: an hour)", "SECONDS", number),
        more="""
PORT is a port of the sandbox; LOCAL:PORT also chooses the port on this machine.
With --reverse programs in the sandbox reach a port of this machine at 127.0.0.1:PORT, also without a network: PORT is both ports,
PORT:LOCAL or PORT:HOST:LOCAL names the other side. PORT 0 is any free port; the command prints it.
""",
    ),
    Command(
        "logs", "show the output of what `run` or `exec -d` started", "logs:logs", "SANDBOX? COMMAND_ID?",
        Option("--service", "of `holdfast up` on this machine instead: gateway, controller, node or redis", "NAME"),
        Option("--data", "with --service: the folder of the stack (HOLDFAST_DATA, else .holdfast)", "DIR"),
        Option("-f --follow", "follow the output until the command ends"), Option("-n --tail", "only the last lines", "LINES", _lines),
        _RAW,
        more="""
The sandbox keeps the last 64 MiB of the output in memory, or a quarter of its memory if that is less. It keeps them for five minutes after
the command has ended and its output was read to the end. With --service the log of a process of `holdfast up`, which runs keep: the last
16 to 32 MiB of each.
""",
    ),
    Command(
        "history", "list the last commands of a sandbox", "history:history", "SANDBOX",
        more="""
The commands of all clients, the oldest first, as the sandbox reports them: at most 1000 that have ended, and those that run.
`logs SANDBOX ID` shows output that is still kept.
""",
    ),
    Command(
        "list", "list sandboxes", "sandboxes:list_", "",
        Option("-l --label", "only those with this label: NAME=VALUE, NAME!=VALUE, NAME, !NAME, 'NAME in (A,B)', 'NAME notin (A,B)'",
               "WHAT", many=True),
        Option("-q --quiet", "print ids only"),
        Option("-f --filter", "label=NAME=VALUE, status=pending|ready|failed, ancestor=IMAGE, id=ID, name=ID", "WHAT=VALUE", many=True),
        Option("--all-owners", "those of everybody whom the key may look at, with their owners: of all owners for an operator"), *_OF_OWNER,
        _ROWS, Option("--docker", "leave out those that have ended, unless with -a, as docker does"),
        Option("-a --all", "with --docker: also those that have ended; else it has no effect"), Option("--no-trunc", _NO_EFFECT),
    ),
    Command(
        "events", "show what happens to sandboxes, until interrupted", "events:events", "",
        Option("--since", "begin with those that changed in this time, at most an hour: 90, 90s, 10m, 1h", "TIME", duration),
        Option("-l --label", "only those with this label", "NAME=VALUE", many=True),
        Option("--group", "only those of this group", "GROUP"),
        Option("--sandbox", "only the sandbox of this id", "ID", many=True),
        Option("--kind", "only events of this type, such as command_ended", "TYPE", many=True),
        Option("--activity", "also what happens in the sandboxes, as they report it: commands, clients, files that clients write"),
        Option("--usage", "and every so many seconds what they use and where they listen", "TIME", duration),
        Option("--files", "and the changes below this directory of each sandbox", "DIRECTORY"),
        Option("--pulls", "also the progress of your pulls of images"),
        more="""
Each line has the time, what the sandbox is now (created, ready, paused, leaving, failed, deleted) and its id, labels and cause. `gap`
states that events may be missing: list the sandboxes. The end of a sandbox passes every filter of labels and groups. --json
prints one object per line.
""",
    ),
    Command(
        "recordings", "list recordings, also of sandboxes that are gone, or delete some", "recordings:recordings", "",
        Option("--sandbox", "only those of the sandbox of this id", "ID"), Option("--rm", "delete this recording", "RECORDING", many=True),
    ),
    Command(
        "replay", "show a recording as it happened, or write it in another form", "recordings:replay", "RECORDING",
        Option("--speed", "this many times as fast (default 1)", "NUMBER", number),
        Option("--pause", "shorten pauses to this many seconds (default 2)", "SECONDS", number),
        Option("--from", "begin with this command: its id, or its number from 1", "COMMAND"),
        Option("--export", "write it in this form in place of showing it: asciicast, lines, messages", "FORM"),
        more="""
RECORDING may also be the id of a sandbox: its latest recording. On a terminal the space bar pauses and continues, + and - change the
speed, n goes to the next command, q ends. What could change the terminal beyond its screen is shown as text. `asciicast` is asciinema's
format (version 2), `lines` are JSON lines as they are stored, `messages` are chat messages with tool calls, one JSON object.
""",
    ),
    Command(
        "inspect", "print the records of sandboxes, as JSON", "sandboxes:inspect", "SANDBOX...",
        _FORMAT, _DOCKER, Option("--type", _NO_EFFECT, "TYPE"),
        more="A template may use the record's own fields ({{.status}}) and docker's ({{.State.Running}}).",
    ),
    Command(
        "stats", "show what sandboxes use: CPU, memory, processes", "processes:stats", "SANDBOX*",
        Option("--no-stream", "print once instead of every two seconds; the default for a file or pipe"),
        Option("-a --all", _NO_EFFECT),
        more="The figures are sums over the processes in a sandbox; memory that processes share counts once for each of them.",
    ),
    Command("top", "list the processes in a sandbox", "processes:top", "SANDBOX"),
    Command(
        "snapshot", "store the files of a sandbox as an image of your own", "snapshots:snapshot", "SANDBOX NAME?",
        Option("-a --author", _NO_EFFECT, "TEXT"), Option("-m --message", _NO_EFFECT, "TEXT"), Option("-p --pause", _NO_EFFECT),
        Option("--docker", "print the digest, as docker does"),
        more="""
The sandbox is stopped for the copy and continues. Without NAME the image is named by its digest, which is printed. holdfast run NAME
creates sandboxes from it. `commit` is the same.
""",
    ),
    Command(
        "branch", "create sandboxes that continue from where a sandbox is", "snapshots:branch", "SANDBOX",
        Option("-n --number", "how many (1)", "NUMBER", number, 1.0),
        Option("--now", "do not wait until no shell runs a command"),
        Option("--timeout", "how long to wait for the shells (60)", "SECONDS", number),
        Option("--turn", "the turn of the episode, for the records of the branches", "NUMBER", number),
        more="""
Each has the files, variables, options and living shells of the sandbox. What does not continue is listed on standard error; the ids are
printed.
""",
    ),
    Command(
        "pause", "stop sandboxes until they are resumed", "snapshots:pause", "SANDBOX...",
        Option("--to-disk", "end their processes, free the memory, and keep files and living shells, also over a restart"),
        Option("--now", "with --to-disk: do not wait until no shell runs a command"),
    ),
    Command("resume", "continue paused sandboxes", "snapshots:resume", "SANDBOX...", more="`unpause` is the same."),
    Command(
        "update", "change labels and limits of sandboxes", "sandboxes:update", "SANDBOX...",
        Option("-l --label", "set a label", "NAME=VALUE", many=True), Option("--unlabel", "remove a label", "NAME", many=True),
        Option("--lifetime", "delete the sandbox after this time from now", "SECONDS", number),
        Option("--idle-timeout", "delete the sandbox when it was idle for this time; 0: no such limit", "SECONDS", number),
        Option("--heartbeat-timeout", "delete the sandbox after this time without a heartbeat; 0: no such limit", "SECONDS", number),
        more="""
What is not given stays. Memory and CPU cannot be changed: --memory and --cpus of docker update have no counterpart.
""",
    ),
    Command(
        "stop", "delete sandboxes", "sandboxes:stop", "SANDBOX...",
        Option("-t --time --timeout", _NO_EFFECT, "SECONDS"), Option("-s --signal", _NO_EFFECT, "SIGNAL"),
        more="The same as rm: a sandbox that has ended cannot be started again, and its files are deleted.",
    ),
    Command(
        "rm", "delete sandboxes and everything in them", "sandboxes:remove", "SANDBOX*",
        Option("-f --force", "do not ask, and ignore sandboxes that do not exist"),
        Option("-a --all", "all sandboxes of this key"), Option("-l --label", "those with this label, as in list", "WHAT", many=True),
        *_OF_OWNER, Option("-v --volumes", _NO_EFFECT),
    ),
    Command(
        "build", "build an image from a Dockerfile, in sandboxes of the service", "build:build", "DIR",
        Option("-t --tag", "name of the image; may be repeated", "NAME", many=True),
        Option("-f --file", "the Dockerfile (default: Dockerfile in DIR; - is standard input)", "FILE"),
        Option("--build-arg", "the value of an ARG; NAME alone takes it from this environment", "NAME=VALUE", many=True),
        Option("--target", "the stage to build (default: the last)", "STAGE"),
        Option("--no-cache", "run every step again"), Option("--pull", "fetch base images again"),
        Option("--label", "set a label of the image", "NAME=VALUE", many=True),
        Option("--secret", "content for RUN --mount=type=secret: id=NAME,src=FILE or id=NAME,env=VARIABLE", "SECRET", many=True),
        Option("--network", "network of RUN: default (the internet) or none", "MODE"),
        Option("--cpu --cpus", "limit of CPU of a step, in cores", "CORES"), Option("-m --memory", "limit of memory of a step", "SIZE"),
        Option("--disk", "limit of disk space of a step", "SIZE"), Option("--timeout", "end a RUN after this time", "SECONDS", number),
        Option("--iidfile", "write the digest of the image to this file", "FILE"),
        Option("--progress", "auto, plain or quiet", "MODE", default="auto", values=("auto", "plain", "quiet")),
        Option("-q --quiet", "print the digest of the image only"),
        Option("--platform", "only the one of the service: images are built for it", "PLATFORM"), _SHARED,
        Option("--rm --force-rm --load", _NO_EFFECT),
        more="""
DIR is the build context; - reads the Dockerfile from standard input and has no context. Steps that earlier builds have done are not
repeated. Exit code 1: a RUN failed.
""",
    ),
    Command(
        "image prune", "remove the steps that earlier builds have left for later ones", "build:prune", "",
        Option("-f --force", _NO_EFFECT),
    ),
    Command(
        "image list", "list images", "images:list_", "",
        Option("-a --all", _NO_EFFECT), Option("-q --quiet", "print names only"), _ROWS,
    ),
    Command("image inspect", "print the records of images, as JSON with docker's names of fields", "images:inspect", "NAME...", _FORMAT),
    Command(
        "image pull", "fetch an image from a registry", "images:pull", "NAME", _SHARED, Option("-q --quiet", _NO_EFFECT),
    ),
    Command(
        "image import", "import an OCI layout, a docker or OCI archive, or a root directory", "images:import_", "PATH NAME", _SHARED,
        more="PATH is a directory, or an archive as docker save or export write it, or - for standard input.",
    ),
    Command(
        "image tag", "give an image a further name", "images:tag", "NAME TAG", _SHARED, Option("--docker", "print nothing, as docker does"),
    ),
    Command(
        "image save", "write an image as an OCI archive", "images:save", "NAME",
        Option("-o --output", "the file to write (default: standard output)", "FILE"),
    ),
    Command(
        "image rm", "remove images", "images:remove", "NAME...", _SHARED, Option("-f --force", _NO_EFFECT),
    ),
    Command(
        "key create", "make an API key and print it, once; for operators", "keys:create", "",
        Option("--owner", "whose key it is (required)", "OWNER"),
        Option("--project", "limit it to a project of which the owner is a member", "PROJECT"),
        Option("--scopes", "what it permits (default: all but admin): read,create,exec,files,images,admin", "SCOPES"),
        Option("--expires", "it ends after this time: 90s, 10m, 12h, 30d", "TIME", duration), Option("--note", "shown in lists", "TEXT"),
    ),
    Command(
        "key list", "list API keys, without the keys themselves; for operators", "keys:list_", "",
        Option("--owner", "only those of this owner", "OWNER"), Option("--project", "only those of this project", "PROJECT"),
        Option("-a --all", "also those that are revoked or expired"), Option("-q --quiet", "print ids only"),
    ),
    Command(
        "key rotate", "make a key in place of another one and print it, once; for operators", "keys:rotate", "KEY_ID",
        Option("--grace", "how long the old key still works (default: not at all)", "TIME", duration),
    ),
    Command(
        "key revoke", "end keys at once, with what is in use with them; for operators", "keys:revoke", "KEY_ID...",
    ),
    Command(
        "audit", "show who did what, from the service's audit log; for operators", "audit:audit", "",
        Option("--sandbox", "only what concerns the sandboxes of this name", "NAME"),
        Option("--owner", "only what this owner did", "OWNER"),
        Option("--since", "only the last: 90s, 10m, 12h, 30d", "TIME", duration),
        Option("-n --limit", "the last entries (1000)", "NUMBER", number),
        more="The service keeps it where HOLDFAST_AUDIT says. --json prints the entries as they are stored, one JSON object per line.",
    ),
    Command(
        "limits", "show the limits that hold for this key, or set those of an owner, a project or a key", "limits:limits", "SUBJECT?",
        Option("--set", "set this limit; needs an operator's key, as do the options below", "NAME=NUMBER", many=True),
        Option("--clear", "remove the limits that are not set by --set"), Option("-a --all", "those of every owner, project and key"),
        more="""
SUBJECT is owner:NAME, owner:* (each owner without limits of its own), project:NAME or key:ID. Limits are sandboxes, cores, memory_bytes,
creates_per_minute, requests_per_minute, output_bytes_per_minute and upload_bytes_per_minute.
""",
    ),
    Command(
        "project create", "make a project; for operators", "projects:create", "PROJECT",
        Option("--member", "an owner whose keys are valid in it", "OWNER", many=True), _SHARING,
    ),
    Command("project list", "list projects; for operators", "projects:list_", "", Option("-q --quiet", "print names only")),
    Command(
        "project members", "list the members of a project, or change them; for operators", "projects:members", "PROJECT",
        Option("--add", "add this owner", "OWNER", many=True), Option("--remove", "remove this owner", "OWNER", many=True), _SHARING,
    ),
    Command("project delete", "delete projects without sandboxes, and revoke their keys; for operators", "projects:delete", "PROJECT..."),
    Command(
        "up", "run the whole of one machine: Redis, node, controller and gateway, in the foreground", "up:up", "",
        Option("-p --port", "the gateway's port on 127.0.0.1 (PORT, else 8765)", "PORT"),
        Option("--data", "the folder of this stack (HOLDFAST_DATA, else .holdfast)", "DIR"),
        Option("--procfile", "the processes to run instead", "FILE"),
        Option("--stop-grace", "how long each process may take to stop", "SECONDS", number),
        Option("--with-parent", "end when the process that started this one ends"),
        Option("--no-ready", "do not wait for a gateway"),
        more="""
Needs the extra server: pip install 'holdfast[server]'. With HOLDFAST_REDIS_URL that Redis is used; otherwise one is started.
Ctrl-C ends all processes and sandboxes in order; a second Ctrl-C kills them.
""",
    ),
    Command(
        "cost", "compute the hourly cost of a sandbox on your own nodes", "cost:cost", "",
        Option("--sandboxes", "number of sandboxes that run at the same time (128)", "NUMBER", number, 128),
        Option("--cpu --cpus", "CPU limit of a sandbox, in cores (2)", "CORES", default="2"),
        Option("-m --memory", "memory limit of a sandbox (8g)", "SIZE", default="8Gi"),
        Option("--cpu-used", "cores that a sandbox uses on average; nodes are then filled by use, not by limits", "CORES"),
        Option("--memory-used", "memory that a sandbox uses on average; as --cpu-used", "SIZE"),
        Option("--headroom", "reservation of a node for a sandbox, as a multiple of its use (1.25)", "FACTOR", number, 1.25),
        Option("--commands", "commands that one sandbox runs in a second (0.2)", "NUMBER", number, 0.2),
        Option("--node-cpu", "cores of a node that are available to sandboxes (16)", "CORES", default="16"),
        Option("--node-memory", "memory of a node that is available to sandboxes (64g)", "SIZE", default="64Gi"),
        Option("--node-pods", "limit of pods on a node (110, the kubelet's usual limit)", "NUMBER", number, 110),
        Option("--node-price", "price of a node for an hour (0.824; 0.165 was the spot price of the same node)", "USD", number, 0.824),
        Option("--service-price", "price for an hour of a node that runs the service (as --node-price)", "USD", number),
        Option("--measured", "read the overhead of Holdfast from this bench.json", "FILE"),
        more="""
Measure the use with `holdfast stats` or your cluster's metrics during a training run. Without --cpu-used and --memory-used the limits of a
sandbox are counted.
""",
    ),
    Command(
        "mcp", "serve a sandbox to clients of the Model Context Protocol, on standard input and output", "mcp:mcp", "IMAGE?",
        Option("--http", "serve streamable HTTP at http://HOST:PORT/mcp instead", "HOST:PORT"),
        Option("--sandbox", "use this sandbox, which is kept, in place of a new one", "SANDBOX"),
        Option("--cpu --cpus", "limit of CPU, in cores", "CORES"), Option("-m --memory", "limit of memory: 512Mi, 4Gi", "SIZE"),
        Option("--network --net", "network access: internet (or bridge), or none (default)", "MODE", bare="internet", values=NETWORKS),
        more="""
Needs the extra mcp: pip install 'holdfast[mcp]'. All clients of one server share the sandbox, which is created with the first call of a
tool and deleted when the server ends. HOLDFAST_MCP_TOKEN is the token of HTTP clients; without it only 127.0.0.1 may be served.
""",
    ),
    Command("doctor", "check this machine and the service, and print what to do", "doctor:doctor"),
    Command(
        "completion", "print the completion of this command line for a shell", "completion:completion", "SHELL",
        more="""
SHELL is bash, zsh or fish. In its startup file: eval "$(holdfast completion bash)", source <(holdfast completion zsh), or
holdfast completion fish | source.
""",
    ),
    Command("info", "print what the service is and has", "version:info", "", _FORMAT, _DOCKER),
    Command("version", "print the version", "version:version", "", _FORMAT, _DOCKER),
    Delegated("recipes", "train and evaluate agents: tasks, rollouts, data sets, reports (recipes --help)", "recipes:recipes", "COMMAND"),
)}  # fmt: skip
NAMES = sorted({*_COMMANDS, *ALIASES, "help"})


def all_commands() -> list[Command]:
    """Every command, in the order of the help."""
    return [*_COMMANDS.values()]


def named(words: Sequence[str]) -> tuple[Command | None, int]:
    """The command that the words begin with, and how many of them are its name; None if they name no command."""
    at = 1 if len(words) > 1 and words[0] in GROUPS else 0
    for size in (2, 1):
        name = " ".join(words[at : at + size])
        name = ALIASES.get(name, name)
        if name in _COMMANDS and len(words) >= at + size:
            return _COMMANDS[name], at + size
    return None, 0


def help_text() -> str:
    """The text of ``holdfast --help``."""
    head = "usage: holdfast COMMAND ...\n\nIsolated sandboxes for language-model agents.\n\ncommands (COMMAND --help for details):\n"
    top = columns([JSON, HELP, ("--version", "print the version")])
    return f"{head}{columns([*map(_overview, _COMMANDS.values())])}\noptions:\n{top}\n{EPILOG}"


def group_help_text(group: str) -> str:
    """The text of ``holdfast GROUP --help`` if GROUP is the first word of several commands, else an empty text."""
    rows = [_overview(command) for name, command in _COMMANDS.items() if group in GROUPS or name.startswith(f"{group} ")]
    if not rows or group in _COMMANDS:
        return ""
    more = f"{group} may stand before a command and changes nothing.\n\n" if group in GROUPS else ""
    return f"usage: holdfast {group} COMMAND ...\n\n{more}commands (COMMAND --help for details):\n{columns(rows)}"


def _overview(command: Command) -> tuple[str, str]:
    others = ", ".join(other for other, meant in ALIASES.items() if meant == command.name)
    positions = command.positions.replace(command.inner, "COMMAND") if command.inner else command.positions
    return f"{command.name} {positions}".strip(), f"{command.help} (also {others})" if others else command.help
