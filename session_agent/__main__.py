"""``python -m session_agent``: the agent as a container's command, and ``copy TARGET`` as an init container's."""

import sys


def run(arguments: list[str]) -> int:
    """Run the command that the arguments name; returns the exit status."""
    if arguments and arguments[0] == "copy" and len(arguments) == 2:
        from .agent.startup.install import install

        try:
            print(f"session_agent: copied {install(arguments[1])} bytes to {arguments[1]}", file=sys.stderr)
        except OSError as error:
            print(f"session_agent: cannot copy to {arguments[1]}: {error}", file=sys.stderr)
            return 74
        return 0
    if arguments:
        print(f"session_agent: there is no command {' '.join(arguments)!r}; the only command is copy TARGET", file=sys.stderr)
        return 64
    from .agent.startup.server import main

    return main()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
