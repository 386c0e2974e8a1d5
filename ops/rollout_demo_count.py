"""Whether the demonstration's requests and answers add up. Pure: it counts what was read back."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.ops.faults.verdict import Answer, Asked


@dataclass(frozen=True, slots=True)
class DemoCount:
    """Requests by their ids, and answers."""

    sent: int
    answered_once: int  # by a version that kept its share
    asked_again: int  # what the bad version had answered
    answered_again: int  # of those, once by the bad version and then once, well, by another
    others: int  # answered in any other way, or not at all
    by_version: dict[str, int]  # answers
    bad: str
    bad_failed: int  # of its answers

    @property
    def adds_up(self) -> bool:
        """Each was answered once, or once more after it was asked again."""
        return (
            self.asked_again > 0
            and self.asked_again == self.answered_again
            and self.sent == self.answered_once + self.answered_again
            and sum(self.by_version.values()) == self.sent + self.asked_again
        )

    def lines(self, seconds: float) -> list[str]:
        """For people."""
        versions = ", ".join(
            f"{count:,} by version {version}" for version, count in sorted(self.by_version.items())
        )
        return [
            f"{self.sent:,} sent = {self.answered_once:,} answered once + {self.answered_again:,} answered by version "
            f"{self.bad} ({self.bad_failed:,} failed) and asked again; {self.others:,} lost or doubled",
            f"{sum(self.by_version.values()):,} answers = {self.sent:,} sent + {self.asked_again:,} asked again: "
            f"{versions}, in {seconds:.0f} s",
        ]


def slot_of(version: str, number: int) -> str:
    """A worker's slot."""
    return f"v{version}-{number}"


def version_of(slot: str) -> str:
    """The version of a slot's worker."""
    return slot[1:].rpartition("-")[0]


def count_up(asked: Sequence[Asked], answers: Sequence[Answer], bad: str) -> DemoCount:
    """Of all that lies in the topics; `bad` is the version that was taken back."""
    records = Counter(each.id for each in asked)
    of_id: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        of_id[answer.id].append(answer)
    once = again = 0
    for id_ in records:
        # Of one request all answers lie in one partition of `results`, in their order.
        found = sorted(of_id[id_], key=lambda each: each.at)
        versions = [version_of(each.slot) for each in found]
        is_well = bool(found) and found[-1].status == "ok" and versions[-1] != bad
        if is_well and len(found) == 1:
            once += 1
        elif is_well and len(found) == 2 and versions[0] == bad and records[id_] == 2:
            again += 1
    bad_ones = [each for each in answers if version_of(each.slot) == bad]
    return DemoCount(
        sent=len(records),
        answered_once=once,
        asked_again=len(asked) - len(records),
        answered_again=again,
        others=len(records) - once - again,
        by_version=dict(Counter(version_of(each.slot) for each in answers)),
        bad=bad,
        bad_failed=sum(each.status != "ok" for each in bad_ones),
    )
