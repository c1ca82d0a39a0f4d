"""``completion``: print the completion of this command line for bash, zsh or fish.

Owns the three texts, made from the list of commands: names of commands, their options with the values that they take, ids of sandboxes and
names of images where a command takes them, and files elsewhere. Ids and names are requested while the user types; without a service there
are none.
"""

from __future__ import annotations

import sys

from holdfast.cli.command_line import Arguments, Command, Option, UsageError
from holdfast.cli.commands import ALIASES, all_commands

_SANDBOXES, _IMAGES, _FILES = "sandboxes", "images", "files"
_ASKED = {_SANDBOXES: "holdfast list -q 2>/dev/null", _IMAGES: "holdfast image list -q 2>/dev/null"}

_BASH = """\
# bash completion of holdfast: eval "$(holdfast completion bash)"
_holdfast() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} name=${COMP_WORDS[1]-} words=
  [[ $name == image && $COMP_CWORD -gt 2 ]] && name="image ${COMP_WORDS[2]}"
  COMPREPLY=()
  if (( COMP_CWORD == 1 )); then
    words="%(names)s"
  elif [[ $name == image ]]; then
    words="%(image)s"
  else
    case "$name $before" in
%(values)s
    *) case "$name" in
%(commands)s
      esac ;;
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  (( ${#COMPREPLY[@]} )) || COMPREPLY=($(compgen -f -- "$current"))
}
complete -o filenames -F _holdfast holdfast
"""
_ZSH = """\
#compdef holdfast
# zsh completion of holdfast: source <(holdfast completion zsh)
autoload -Uz bashcompinit && bashcompinit
"""


def completion(arguments: Arguments) -> None:
    if arguments.shell not in ("bash", "zsh", "fish"):
        raise UsageError(f"SHELL must be one of bash, zsh, fish, not {arguments.shell!r:.50}")
    commands = all_commands()
    sys.stdout.write({"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell](commands))


def _names(command: Command) -> list[str]:
    """Its own name and its aliases."""
    return [command.name, *(other for other, meant in ALIASES.items() if meant == command.name)]


def _takes(command: Command) -> str:
    """What the positions of a command are."""
    places = {place.rstrip(".?*") for place in command.places}
    if "SANDBOX" in places or command.name == "cp":
        return _SANDBOXES
    return _IMAGES if "IMAGE" in places or (command.name.startswith("image") and "NAME" in places) else _FILES


def _options(command: Command) -> list[str]:
    return [name for option in command.options for name in option.names.split() if name.startswith("--")]


def _bash(commands: list[Command]) -> str:
    top = sorted({name for command in commands for name in _names(command) if " " not in name} | {"image", "help"})
    image = sorted(name.removeprefix("image ") for command in commands for name in _names(command) if name.startswith("image "))
    values, rows = [], []
    for command in commands:
        for name in _names(command):
            for option in command.options:
                if option.values:
                    keys = "|".join(f'"{name} {key}"' for key in option.names.split())
                    values.append(f'    {keys}) words="{" ".join(option.values)}" ;;')
            asked = _ASKED.get(_takes(command))
            more = f" $({asked})" if asked else ""
            rows.append(f'      "{name}") [[ $current == -* ]] && words="{" ".join(_options(command))}" || words="{more.strip()}" ;;')
    return _BASH % {"names": " ".join(top), "image": " ".join(image), "values": "\n".join(values), "commands": "\n".join(rows)}


def _zsh(commands: list[Command]) -> str:
    return _ZSH + _bash(commands)


def _fish(commands: list[Command]) -> str:
    lines = ["# fish completion of holdfast: holdfast completion fish | source", "complete -c holdfast -f"]
    for command in commands:
        for name in _names(command):
            first, _, second = name.partition(" ")
            here = f"__fish_seen_subcommand_from {first}" + (f"; and __fish_seen_subcommand_from {second}" if second else "")
            start = "not __fish_seen_subcommand_from list ls rm pull tag save import inspect" if second else "__fish_use_subcommand"
            start = f"__fish_seen_subcommand_from image; and {start}" if second else start
            lines.append(f"complete -c holdfast -n '{start}' -a '{second or first}' -d '{_plain(command.help)}'")
            lines += [f"complete -c holdfast -n '{here}' {_fish_option(option)}" for option in command.options]
            asked = _ASKED.get(_takes(command))
            lines.append(f"complete -c holdfast -n '{here}' " + (f"-a '({asked})'" if asked else "-F"))
    return "\n".join(lines) + "\n"


def _fish_option(option: Option) -> str:
    words = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names.split()]
    words += [f"-d '{_plain(option.help)}'", *(["-r"] if option.metavar and not option.bare else [])]
    return " ".join([*words, *([f"-a '{' '.join(option.values)}'"] if option.values else [])])


def _plain(text: str) -> str:
    return text.replace("\\", "").replace("'", "\\'")
