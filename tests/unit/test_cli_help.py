"""What `--help` says of every command: examples that can be pasted, and options of one name everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from headrace.ops.cli import cli


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        below = command.get_command(context, each)
        assert below is not None
        yield from leaves(below, f"{name} {each}")


COMMANDS = dict(leaves(cli, "headrace"))


def help_of(name: str) -> str:
    return COMMANDS[name].get_help(click.Context(COMMANDS[name], info_name=name, terminal_width=80))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_has_an_example_that_stands_on_a_line_of_its_own(name: str) -> None:
    lines = [" ".join(line.split()) for line in help_of(name).splitlines()]
    epilog = COMMANDS[name].epilog or ""
    examples = [" ".join(line.split()) for line in epilog.splitlines() if name in line]
    assert examples
    for example in examples:
        assert example in lines


@pytest.mark.parametrize("name", COMMANDS)
def test_who_connects_to_brokers_can_be_told_the_prefix_too(name: str) -> None:
    options = {option for each in COMMANDS[name].params for option in each.opts}
    if "--bootstrap-servers" in options:
        assert "--prefix" in options


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str) -> None:
    for each in COMMANDS[name].params:
        if isinstance(each, click.Option):
            assert each.help, each.opts
