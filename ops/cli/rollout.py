"""`headrace rollout`: another version of a model, step by step, and back."""

from __future__ import annotations

import json
import logging
import signal
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from headrace.ops.cli import options
from headrace.ops.cli.results import Since
from headrace.schemas.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from types import FrameType

    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

WINDOW_S = 60.0  # of the answers that `status` counts, where no rollout is under way
PERCENT = click.FloatRange(0, 100, max_open=True)

model = click.argument("model", metavar="MODEL")
contract = click.option(
    "--contract", type=click.IntRange(1), help="Number of the contract. Default: what the model's name means."
)


@click.group(
    epilog="""\b
    Examples:
      headrace rollout start movie-tagger --to 4 --steps 6,25,50,100 --hold 10m
      headrace rollout status movie-tagger --watch
      headrace rollout rollback movie-tagger
      headrace rollout compare movie-tagger --shadow 4"""
)
def rollout() -> None:
    """Move a contract's traffic to another version, step by step, and back.

    Versions of one contract share its partitions. A rollout plans their shares; workers give partitions away once
    what they have begun is done, so that nothing is lost, doubled or begun again. A key stays with one version
    between steps.
    """


def _settings(bootstrap_servers: str | None, prefix: str | None) -> Settings:
    from headrace.schemas.settings import Settings

    return Settings.from_environment(bootstrap_servers=bootstrap_servers, prefix=prefix)


def _names(settings: Settings, model_name: str, number: int | None) -> ContractNames:
    """The contract that is meant. Raises UsageError where that is not clear."""
    from headrace.ops.rollouts.orders import read_all
    from headrace.topics.names import ContractNames

    if number is not None:
        return ContractNames(settings.prefix, model_name, number)
    _, catalogue = read_all(settings)
    alias = catalogue.contracts.aliases.get(model_name)
    if alias is not None:
        return ContractNames(settings.prefix, alias.model, alias.number)
    numbers = [found for name, found in catalogue.known if name == model_name]
    if len(numbers) == 1:
        return ContractNames(settings.prefix, model_name, numbers[0])
    if not numbers:
        known = ", ".join(sorted({name for name, _ in catalogue.known})) or "none yet"
        raise UsageError(
            f"no worker has served {model_name!r} (known: {known}); --contract N says which is meant"
        )
    raise UsageError(
        f"{model_name} has the contracts {', '.join(map(str, numbers))}: say which with --contract, or name one with "
        "`headrace contracts alias`"
    )


def _steps(_: click.Context, __: click.Parameter, given: str) -> list[int]:
    """`6,25,50,100`."""
    try:
        steps = [int(each) for each in given.split(",")]
    except ValueError:
        raise click.BadParameter(f"{given!r}: whole percents, as 6,25,50,100") from None
    if steps != sorted(set(steps)) or not all(0 < each <= 100 for each in steps):
        raise click.BadParameter(f"{given!r}: percents from 1 to 100, each more than the one before")
    return steps


@rollout.command(
    epilog="""\b
    Examples:
      headrace rollout start movie-tagger --to 4
      headrace rollout start movie-tagger --to 4 --steps 10,100 --hold 90s --max-error-rate 2 --max-p95-ratio 1.3
      headrace rollout start movie-tagger --to 4 --detach     # `headrace rollout controller` runs elsewhere"""
)
@model
@click.option("--to", required=True, metavar="VERSION", help="The version that is to serve.")
@click.option(
    "--steps",
    default="6,25,50,100",
    show_default=True,
    callback=_steps,
    help="Its percents, one after the other.",
)
@click.option(
    "--hold", default="10m", show_default=True, callback=options.duration, help="How long a step is watched."
)
@click.option(
    "--max-error-rate",
    type=PERCENT,
    default=1.0,
    show_default=True,
    help="Percent of its answers that may fail.",
)
@click.option(
    "--max-invalid",
    type=PERCENT,
    default=1.0,
    show_default=True,
    help="Percent that its schema may not accept.",
)
@click.option(
    "--max-p95-ratio",
    type=click.FloatRange(1),
    help="Its 95th percentile of latency over the others', at most.",
)
@click.option(
    "--detach", is_flag=True, help="Write it and return; a controller that runs elsewhere takes it on."
)
@contract
@options.bootstrap_servers
@options.prefix
def start(
    model: str,
    to: str,
    steps: list[int],
    hold: float,
    max_error_rate: float,
    max_invalid: float,
    max_p95_ratio: float | None,
    detach: bool,
    contract: int | None,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> None:
    """Begin to move MODEL's traffic to another version, and see it through.

    Each step waits for a worker of the version, moves partitions, and is held while results are watched. Where a
    limit is broken for certain, everything goes back by itself. Ctrl-C leaves the rollout as it stands; any
    `headrace rollout controller` goes on with it.
    """
    from headrace.consumers.rollouts import Limits, shown_shares
    from headrace.ops.rollouts import orders

    settings = _settings(bootstrap_servers, prefix)
    names = _names(settings, model, contract)
    limits = Limits(error_rate=max_error_rate / 100, invalid_rate=max_invalid / 100, p95_ratio=max_p95_ratio)
    of, begun = orders.start(settings, names, to, steps, hold, limits)
    percents = ", ".join(map(str, steps))
    click.echo(f"rollout {of[1]}: from {shown_shares(begun.before)} to version {to}, steps {percents} %")
    if detach:
        click.echo("a controller must be running for it to go on: headrace rollout controller")
        return
    from headrace.ops.rollouts.following import follow_to_the_end

    logging.getLogger("kafka").setLevel(logging.ERROR)
    try:
        raise SystemExit(follow_to_the_end(settings, names, of))
    except KeyboardInterrupt:
        click.echo(
            f"rollout {of[1]} stays as it stands; `headrace rollout controller` goes on with it, "
            f"`headrace rollout rollback {model}` takes it back",
            err=True,
        )
        raise SystemExit(130) from None


@rollout.command(epilog="Example: headrace rollout controller")
@options.bootstrap_servers
@options.prefix
def controller(bootstrap_servers: str | None, prefix: str | None) -> None:
    """See all rollouts through, until Ctrl-C.

    Of several, on any machines, one decides and the others stand by. Nothing is kept but in Kafka: one that was gone
    for an hour goes on where the rollout stands.
    """
    from headrace.ops.rollouts.controller import Controller

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    made = Controller(_settings(bootstrap_servers, prefix))

    def stop(_: int, __: FrameType | None) -> None:
        made.stop()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    made.run()


@rollout.command(
    epilog="""\b
    Examples:
      headrace rollout status movie-tagger
      headrace rollout status movie-tagger --watch
      headrace rollout status movie-tagger --json | jq .versions"""
)
@model
@click.option("--watch", is_flag=True, help="Go on showing it, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@contract
@options.bootstrap_servers
@options.prefix
def status(
    model: str,
    watch: bool,
    as_json: bool,
    contract: int | None,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> None:
    """Show MODEL's versions side by side: shares wanted and real, partitions, rate, errors, validity, latency."""
    from headrace.ops.rollouts.following import Standing

    settings = _settings(bootstrap_servers, prefix)
    names = _names(settings, model, contract)
    with ExitStack() as stack:
        standing = stack.enter_context(Standing(settings, names, WINDOW_S))
        standing.catch_up()
        if as_json:
            click.echo(json.dumps(standing.as_json(), ensure_ascii=False))
        elif watch:
            standing.watch()
        else:
            standing.show()


def _order(order: Callable[[Settings, ContractNames], str]) -> Callable[..., None]:
    def ordered(model: str, contract: int | None, bootstrap_servers: str | None, prefix: str | None) -> None:
        settings = _settings(bootstrap_servers, prefix)
        click.echo(order(settings, _names(settings, model, contract)))

    return ordered


def _wish(wished: Any, said: str) -> Callable[[Settings, ContractNames], str]:
    def order(settings: Settings, names: ContractNames) -> str:
        from headrace.ops.rollouts import orders

        return f"rollout {orders.wish(settings, names, wished)}: {said}"

    return order


def _command(name: str, help_: str, order: Callable[[Settings, ContractNames], str]) -> None:
    made: Any = _order(order)
    for decorate in (options.prefix, options.bootstrap_servers, contract, model):
        made = decorate(made)
    rollout.command(name, help=help_, epilog=f"Example: headrace rollout {name} movie-tagger")(made)


_command(
    "pause",
    "Take no further step. Limits are watched on, and a broken one still takes everything back.",
    _wish("pause", "paused; limits are watched on"),
)
_command("resume", "Go on after a pause.", _wish("go_on", "goes on"))
_command(
    "promote",
    "Go to the last step now, without holding those between.",
    _wish("promote", "goes to its last step once a worker of the version lives"),
)


@rollout.command(epilog='Example: headrace rollout rollback movie-tagger --why "wrong language"')
@model
@click.option("--why", default="an operator said so", help="Kept in the history.")
@contract
@options.bootstrap_servers
@options.prefix
def rollback(
    model: str, why: str, contract: int | None, bootstrap_servers: str | None, prefix: str | None
) -> None:
    """Take everything back: the rollout under way, or the last one. Final for that rollout."""
    from headrace.consumers.rollouts import shown_shares
    from headrace.ops.rollouts import orders

    settings = _settings(bootstrap_servers, prefix)
    id_, shares = orders.roll_back(settings, _names(settings, model, contract), why)
    click.echo(f"rollout {id_} is rolled back: {shown_shares(shares)}. Workers drain what they have and move")


@rollout.command(
    epilog="""\b
    Examples:
      headrace rollout history movie-tagger
      headrace rollout history movie-tagger --json"""
)
@model
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
@contract
@options.bootstrap_servers
@options.prefix
def history(
    model: str, as_json: bool, contract: int | None, bootstrap_servers: str | None, prefix: str | None
) -> None:
    """List MODEL's rollouts, the first one first."""
    from headrace.ops.rollouts.orders import read_all
    from headrace.ops.rollouts.view import stage_of, when

    settings = _settings(bootstrap_servers, prefix)
    names = _names(settings, model, contract)
    states = [
        each for each in read_all(settings)[0].rollouts.states(names.group) if each[1].rollout is not None
    ]
    if not states and not as_json:
        click.echo(f"there was no rollout of {model}")
    for id_, state in states:
        begun = state.rollout
        assert begun is not None
        if as_json:
            told = {"id": id_, **begun.model_dump(), "stage": stage_of(state)}
            told["rollback"] = None if state.rollback is None else state.rollback.model_dump()
            click.echo(json.dumps(told, ensure_ascii=False))
        else:
            click.echo(f"{id_}  {when(begun.at)}  by {begun.by}: to version {begun.to}, {stage_of(state)}")


@rollout.command(
    epilog="""\b
    Examples:
      headrace rollout compare movie-tagger --shadow 4
      headrace rollout compare movie-tagger --shadow 4 --since 1d --examples 10
      headrace rollout compare movie-tagger --shadow 4 --json | jq .fields"""
)
@model
@click.option("--shadow", required=True, metavar="VERSION", help="The version that runs as a shadow.")
@click.option(
    "--since",
    type=Since(),
    default="1h",
    show_default=True,
    help="Answers of the shadow from then on: 90s, 10m, 2h, 7d ago, or a time.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=20_000,
    show_default=True,
    help="Answers that are held at a time, the newest: some kB of memory each.",
)
@click.option(
    "--examples",
    type=click.IntRange(0, 100),
    default=3,
    show_default=True,
    help="Disagreements shown of each field.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@contract
@options.bootstrap_servers
@options.prefix
def compare(
    model: str,
    shadow: str,
    since: datetime,
    limit: int,
    examples: int,
    as_json: bool,
    contract: int | None,
    bootstrap_servers: str | None,
    prefix: str | None,
) -> None:
    """Put what a shadow has answered beside what callers got: validity, latency, tokens, agreement by field.

    Only requests that both have answered are counted. Latency is that of generating, without waiting. An array is
    one field, equal where all of it is. Exits with 1 where the version has never run as a shadow.
    """
    from headrace.ops.cli.comparison_rows import show
    from headrace.ops.rollouts.comparing import Comparison
    from headrace.ops.rollouts.pairing import Pairing
    from headrace.topics.names import ShadowNames

    settings = _settings(bootstrap_servers, prefix)
    names = _names(settings, model, contract)
    comparison = Comparison(settings, names, ShadowNames.of(names, shadow), Pairing(limit, examples))
    comparison.read(since)
    if as_json:
        about = {"model": names.model, "contract": names.contract, "version": shadow}
        told = {**about, **comparison.pairing.as_json(), "unreadable": comparison.unreadable}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        show(comparison.pairing, comparison.unreadable)
