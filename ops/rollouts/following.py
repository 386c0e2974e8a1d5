"""A rollout as it goes on, on a terminal: what is planned, what is real, and what the versions answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from headrace.consumers.control import ControlFollower, ControlRecords
from headrace.consumers.group_members import GroupMembers, look_at_group
from headrace.consumers.rollouts import RolloutId, RolloutState
from headrace.ops.rollouts import view
from headrace.ops.rollouts.controller import Controller
from headrace.ops.rollouts.evidence import Tally
from headrace.ops.rollouts.reading import AnswerReader
from headrace.ops.rollouts.watching import Watch
from headrace.schemas.errors import HeadraceError, KafkaUnavailable, UsageError

if TYPE_CHECKING:
    from headrace.schemas.settings import Settings
    from headrace.topics.names import ContractNames

LOOK_S = 1.0
PLAIN_EVERY_S = 5.0
CATCH_UP_S = 30.0
WIDTH_OF_A_PIPE = 160

FINISHED, ROLLED_BACK = 0, 1


class Standing:
    """How a contract's versions stand. Use it as a context manager, from one thread."""

    def __init__(self, settings: Settings, names: ContractNames, window_s: float) -> None:
        """`window_s`: of the answers that are counted where no rollout is under way; else those since it began."""
        self._settings = settings
        self._names = names
        self._window_s = window_s
        self._console = Console()
        if not self._console.is_terminal:
            self._console.width = WIDTH_OF_A_PIPE
        self._control = ControlFollower(settings, ControlRecords)
        self._stack = ExitStack()
        self._since_ms = 0
        self._watch = Watch("")
        self._said = ""
        self._next_line = 0.0

    def __enter__(self) -> Self:
        thread = threading.Thread(target=self._control.run, name="control reader", daemon=True)
        thread.start()
        self._stack.callback(thread.join)
        self._stack.callback(self._control.stop)
        try:
            self._wait_until_ready()
            self._looker = self._stack.enter_context(look_at_group(self._settings, self._names))
            found = self.last()
            now_ms = int(time.time() * 1000)
            under_way = found[1].rollout if found is not None and found[1].is_open else None
            self._since_ms = under_way.at if under_way is not None else now_ms - int(1000 * self._window_s)
            self._reader = AnswerReader(self._settings, self._names, self._since_ms)
            self._stack.callback(self._reader.close)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + CATCH_UP_S
        while not self._control.ready:
            if time.monotonic() > deadline:
                raise KafkaUnavailable(f"the control topic could not be read within {CATCH_UP_S:g} s")
            time.sleep(0.05)

    def last(self) -> tuple[str, RolloutState] | None:
        """The rollout that was begun last."""
        begun = self.begun()
        return begun[-1] if begun else None

    def begun(self) -> list[tuple[str, RolloutState]]:
        """All rollouts of the contract, in the order in which they were begun."""
        states = self._control.asked(lambda records: records.rollouts.states(self._names.group))
        return [each for each in states if each[1].rollout is not None]

    def catch_up(self) -> None:
        """Read what was answered before now."""
        self._reader.caught_up.wait(CATCH_UP_S)
        self._take()

    def _take(self) -> None:
        for answer in self._reader.take():
            self._watch.take(answer)

    @property
    def _tallies(self) -> dict[str, Tally]:
        return self._watch.by_version

    def _rows(self) -> tuple[list[view.VersionRow], GroupMembers, dict[str, int]]:
        self._take()
        group = self._looker.look()
        plan = self._control.asked(lambda records: records.rollouts.plan(self._names.group))
        shares = {} if plan is None else dict(plan.shares)
        seconds = max(1.0, time.time() - self._since_ms / 1000)
        return view.rows_of(shares, group, self._tallies, seconds), group, shares

    def as_json(self) -> dict[str, Any]:
        """For a script."""
        rows, group, shares = self._rows()
        last = self.last()
        return {
            "contract": f"{self._names.model}/{self._names.contract}",
            "rollout": None if last is None else {"id": last[0], "stage": view.stage_of(last[1])},
            "is_open": last is not None and last[1].is_open,
            "units": group.units,
            "versions": [row.as_json() for row in rows],
            "since_ms": self._since_ms,
            "warnings": view.warnings_of(shares, group),
        }

    def show(self, why: str = "") -> None:
        """Once, as it stands."""
        self._console.print(self._shown(why))

    def _shown(self, why: str) -> Group:
        rows, group, shares = self._rows()
        last = self.last()
        head = (
            "no rollout yet: without a plan, all workers share the units"
            if last is None
            else view.head_of(*last)
        )
        parts: list[Any] = [Text(head, style="bold")]
        if why:
            parts.append(Text(f"  {why}", style="dim"))
        parts.append(view.table_of(rows, group.units))
        parts += [Text(f"! {warning}", style="yellow") for warning in view.warnings_of(shares, group)]
        return Group(*parts)

    def watch(self, why: Callable[[], str] = str, until: Callable[[], bool] = bool) -> None:
        """Show it as it changes, until `until` says so or Ctrl-C; plain lines where there is no terminal."""
        if not self._console.is_terminal:
            while not until():
                self._say(why())
                time.sleep(LOOK_S)
            self._next_line = 0.0
            self._say("")
            return
        with Live(console=self._console, refresh_per_second=4, transient=False) as live:
            while not until():
                try:
                    live.update(self._shown(why()), refresh=True)
                except HeadraceError as error:
                    live.update(Text(str(error), style="red"), refresh=True)
                time.sleep(LOOK_S)
            live.update(self._shown(why()), refresh=True)

    def _say(self, why: str) -> None:
        """A line when something has changed, and every few seconds."""
        try:
            rows, _, _ = self._rows()
        except HeadraceError as error:
            self._console.print(str(error), highlight=False, soft_wrap=True)
            return
        last = self.last()
        stage = "" if last is None else view.stage_of(last[1])
        if stage == self._said and time.monotonic() < self._next_line:
            return
        self._said, self._next_line = stage, time.monotonic() + PLAIN_EVERY_S
        counts = "; ".join(
            f"version {row.version}: {row.units} units, {row.answers:,} answers"
            + ("" if not row.failed else f", {row.failed:.1%} failed")
            + ("" if not row.invalid else f", {row.invalid:.1%} invalid")
            for row in rows
        )
        self._console.print(
            f"{time.strftime('%H:%M:%S')} {stage}{f' ({why})' if why else ''}; {counts}",
            highlight=False,
            soft_wrap=True,
        )


def follow_to_the_end(settings: Settings, names: ContractNames, of: RolloutId) -> int:
    """Stand by as a controller and show a rollout until it has ended: FINISHED or ROLLED_BACK.

    Ctrl-C leaves it as it stands (KeyboardInterrupt). Raises KafkaFailed where the controller could not go on, and
    UsageError where another rollout was begun before this one had ended: it goes no further then.
    """
    why: list[str] = [""]
    failed: list[BaseException] = []
    controller = Controller(
        settings, lambda looked: why.__setitem__(0, looked.why if looked.id == of else why[0])
    )

    def run() -> None:
        try:
            controller.run()
        except BaseException as error:  # noqa: BLE001 - told to whoever waits
            failed.append(error)

    thread = threading.Thread(target=run, name="rollout controller", daemon=True)
    thread.start()
    try:
        with Standing(settings, names, 0.0) as standing:

            def ended() -> bool:
                begun = standing.begun()
                own = dict(begun).get(of[1])
                return bool(failed) or own is None or not own.is_open or begun[-1][0] != of[1]

            standing.watch(lambda: why[0] or "a controller is to take it on", ended)
            if failed:
                raise failed[0]
            return _how_it_ended(standing.begun(), of[1])
    finally:
        controller.stop()
        thread.join()


def _how_it_ended(begun: list[tuple[str, RolloutState]], id_: str) -> int:
    """FINISHED or ROLLED_BACK. Raises UsageError where it is neither, since another one was begun after it."""
    own = dict(begun).get(id_)
    if own is None or own.rollback is not None:
        return ROLLED_BACK
    if not own.is_open:
        return FINISHED
    other_id, other = begun[-1]
    assert other.rollout is not None
    raise UsageError(
        f"rollout {id_} goes no further: rollout {other_id} to version {other.rollout.to} was begun by "
        f"{other.rollout.by} meanwhile, and of a contract's rollouts the one that was begun last counts. "
        f"`headrace rollout status {other.rollout.model}` shows it"
    )
