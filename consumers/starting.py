"""Where a partition is begun, or why it is not: no offset, no guess. Pure.

A partition is *parked* when going on could skip a record that nobody has answered, or answer one twice: nothing of
it is read until an operator accepts what is lost (`headrace offsets accept`). An acceptance holds for exactly the
committed state that it was given for.

Three truths meet here. What the group has *committed*: a frontier, and in its metadata the done set above it. What
the *log* still holds: offsets from `beginning` up to `end`. And whether the partition is *known*: the group has
committed an offset for it at some time, so that having none now means that it was lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from headrace.consumers import offset_encoding
from headrace.consumers.records import CommitPoint
from headrace.schemas.errors import UnreadableOffsets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.consumers.records import TopicPartition

Cause = Literal["offsets_gone", "retention", "log_cut_back", "unreadable"]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """An operator's word: with exactly `committed`, go on at `resume_at`, whatever that skips or answers again."""

    committed: CommitPoint | None
    resume_at: int
    by: str  # user@host
    at_ms: int  # since the epoch


@dataclass(frozen=True, slots=True)
class Start:
    """Read from `offset` on, and begin the tenure with `committed`.

    `committed` None: nothing is committed, the tenure begins at `offset`. Else `committed.offset` is at most
    `offset`, and what lies between them is not read: note the position, once the tenure has begun.
    """

    offset: int
    committed: CommitPoint | None


@dataclass(frozen=True, slots=True)
class Park:
    """Read nothing, and raise an alarm.

    `lost` has the offsets that no longer exist, as far as they are known, and `unanswered` says how many of them
    are not done: so many requests at most were lost. `resume_at` is where an acceptance goes on unless it says
    otherwise: nothing that the log still holds is skipped from there.
    """

    why: str
    lost: range | None
    cause: Cause
    unanswered: int
    resume_at: int


def where_to_start(
    tp: TopicPartition,
    committed: CommitPoint | None,
    *,
    beginning: int,
    end: int,
    known: bool,
    acceptance: Acceptance | None,
    limit: int,
    group: str,
) -> Start | Park:
    """Where the tenure of a newly assigned partition begins.

    `committed` is final: no transaction over it is open. `limit` is in characters of metadata.
    """
    decision = _decide(tp, committed, beginning=beginning, end=end, known=known, limit=limit, group=group)
    return _accepted(decision, committed, beginning, end, acceptance)


def where_a_shadow_starts(
    tp: TopicPartition,
    committed: CommitPoint | None,
    *,
    beginning: int,
    end: int,
    known: bool,
    acceptance: Acceptance | None,
    limit: int,
    group: str,
) -> Start:
    """Where a shadow's tenure begins: where its group has got to, else at the end. Called as `where_to_start` is.

    Nobody waits for its answers, so nothing is ever parked: what its group would lose or not know of is passed over.
    """
    if committed is None:
        return Start(end, None)
    decision = _decide(tp, committed, beginning=beginning, end=end, known=known, limit=limit, group=group)
    if isinstance(decision, Start):
        return decision
    if decision.cause == "retention":  # its done set stays true
        return Start(beginning, committed)
    return Start(end, CommitPoint(end, ""))


def retention_headroom(beginning: int, frontier: int, end: int) -> float:
    """How far retention is from what is unread, as a part of the log.

    1.0: nothing is unread, or retention has never removed anything. 0.0: what retention removes next is unread, or
    retention has been there already.
    """
    if frontier >= end or beginning == 0:
        return 1.0
    return (frontier - beginning) / (end - beginning) if frontier > beginning else 0.0


def done_within(offsets: range, done: Sequence[range]) -> int:
    """How many of `offsets` are in a done set."""
    return sum(len(range(max(run.start, offsets.start), min(run.stop, offsets.stop))) for run in done)


# --- the decision without an acceptance -----------------------------------------------------------------------


def _decide(
    tp: TopicPartition,
    committed: CommitPoint | None,
    *,
    beginning: int,
    end: int,
    known: bool,
    limit: int,
    group: str,
) -> Start | Park:
    settle = f"`headrace offsets list` and docs/offsets.md say more; {settling_command(tp, group)} settles it"
    if committed is None:
        # A log that never held anything: no request can have been answered or be missed.
        if not known or end == 0:
            return Start(beginning, None)
        why = (
            f"group {group} has committed offsets for it before, and has none now: they expired while the group had "
            "no members (the brokers' offsets.retention.minutes), a reset deleted them, or the topic was deleted and "
            f"made anew; what of {beginning} to {end} was answered is not known. {settle}"
        )
        return Park(why, None, "offsets_gone", 0, beginning)
    offset = committed.offset
    lost = range(offset, beginning) if offset < beginning else None
    try:
        done = offset_encoding.decode(committed.metadata, offset, limit).done
    except UnreadableOffsets as error:
        why = f"{error} (offset {offset}): a newer release wrote it, and reads it, or somebody did by hand. {settle}"
        return Park(why, lost, "unreadable", len(lost or ()), min(max(offset, beginning), end))
    reached = max(offset, done[-1].stop if done else 0)
    if reached > end:
        why = (
            f"group {group} has committed up to offset {reached}, beyond the log's end {end}: the topic was deleted "
            f"and made anew, or the log was cut back (an unclean leader election). {settle}"
        )
        return Park(why, None, "log_cut_back", 0, beginning)
    if lost is None:
        return Start(offset, committed)
    unanswered = len(lost) - done_within(lost, done)
    if not unanswered:
        return Start(beginning, committed)
    why = (
        f"offsets {lost.start} to {lost.stop - 1} were removed by retention (or delete-records) before they were "
        f"served: {unanswered} requests at most are lost; raise the topic's retention.bytes, or add workers. {settle}"
    )
    return Park(why, lost, "retention", unanswered, beginning)


def _accepted(
    decision: Start | Park,
    committed: CommitPoint | None,
    beginning: int,
    end: int,
    acceptance: Acceptance | None,
) -> Start | Park:
    """What an operator has accepted, where there is something to accept and it is this very state."""
    if isinstance(decision, Start) or acceptance is None or acceptance.committed != committed:
        return decision
    offset = min(max(acceptance.resume_at, beginning), end)
    # Of a log that retention shortened the done set stays true. Otherwise it is unreadable or of another log.
    if decision.cause == "retention" and committed is not None:
        return Start(offset, committed)
    return Start(offset, CommitPoint(offset, ""))


def settling_command(tp: TopicPartition, group: str) -> str:
    """The command line that accepts what was lost of a partition."""
    prefix, model, contract = (*group.split("."), "", "")[:3]
    lane = tp.topic.rpartition(".")[2]
    place = "" if prefix == "headrace" else f" --prefix {prefix}"
    return (
        f"`headrace offsets accept --model {model} --contract {contract.removeprefix('c')}{place} "
        f"{lane}-{tp.partition}`"
    )
