"""``project create``, ``list``, ``members`` and ``delete``, for operators."""

from __future__ import annotations

import dataclasses

from holdfast import SandboxClient
from holdfast.cli.command_line import Arguments
from holdfast.cli.output import print_json, print_line, table


def create(arguments: Arguments) -> None:
    with SandboxClient() as client:
        made = client.projects.create(arguments.project, members=arguments.member, sharing=arguments.sharing or "none")
    if arguments.json:
        print_json(dataclasses.asdict(made))
    else:
        print_line(made.project)


def list_(arguments: Arguments) -> None:
    with SandboxClient() as client:
        found = client.projects.list()
    if arguments.json:
        print_json([dataclasses.asdict(one) for one in found])
    elif arguments.quiet:
        for one in found:
            print_line(one.project)
    else:
        table(("PROJECT", "MEMBERS", "SHARING"), ((one.project, ",".join(one.members), one.sharing) for one in found))


def members(arguments: Arguments) -> None:
    with SandboxClient() as client:
        for owner in arguments.add:
            client.projects.add_member(arguments.project, owner)
        for owner in arguments.remove:
            client.projects.remove_member(arguments.project, owner)
        if arguments.sharing:
            client.projects.share(arguments.project, arguments.sharing)
        found = client.projects.get(arguments.project)
    if arguments.json:
        print_json(dataclasses.asdict(found))
    else:
        for owner in found.members:
            print_line(owner)


def delete(arguments: Arguments) -> None:
    with SandboxClient() as client:
        for project in arguments.project:
            client.projects.delete(project)
            if not arguments.json:
                print_line(project)
    if arguments.json:
        print_json({"deleted": arguments.project})
