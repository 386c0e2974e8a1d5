"""Whether each request was answered exactly once, rightly and in order. Pure: it judges what was read back.

What counts as asked is what lies in the request topics, and what counts as answered what lies, committed, in `results`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.consumers.records import RecordLocation, TopicPartition
from headrace.schemas.messages import Status

SHOWN = 20  # of each kind of finding


@dataclass(frozen=True, slots=True)
class Asked:
    """A record of a request topic."""

    id: str
    key: str | None
    at: RecordLocation


@dataclass(frozen=True, slots=True)
class Answer:
    """A committed record of `results`."""

    id: str
    status: Status
    code: str | None  # of its error
    text: str | None  # of its first output
    at: RecordLocation
    source: RecordLocation  # the request that it says it answers
    slot: str
    attempt: int

    def describe(self) -> str:
        """Where it lies and where it comes from."""
        status = self.status if self.code is None else f"{self.status} ({self.code})"
        return f"answer  {place(self.at)}  {status}, slot {self.slot}, attempt {self.attempt}, of {place(self.source)}"


@dataclass(slots=True)
class Verdict:
    """What was found. All but the counts and `straddling`, `tolerated` must be empty."""

    asked: int = 0  # different ids
    resent: int = 0  # records beyond the first of their id
    answered: int = 0  # different ids
    lost: list[str] = field(default_factory=list[str])
    duplicated: dict[str, list[Answer]] = field(default_factory=dict[str, list[Answer]])
    wrong: list[Answer] = field(default_factory=list[Answer])  # `ok`, and another prompt's text
    not_ok: list[Answer] = field(default_factory=list[Answer])
    unasked: list[Answer] = field(default_factory=list[Answer])
    out_of_order: list[tuple[Answer, Answer]] = field(default_factory=list[tuple[Answer, Answer]])
    lag: dict[TopicPartition, int] = field(default_factory=dict[TopicPartition, int])
    straddling: dict[str, list[Answer]] = field(default_factory=dict[str, list[Answer]])  # see `judge`
    tolerated: list[Answer] = field(default_factory=list[Answer])

    @property
    def passed(self) -> bool:
        """Nothing that must not be was found, and there was something to find it in."""
        return self.asked > 0 and not any(count for _, count in self.findings())

    def findings(self) -> list[tuple[str, int]]:
        """What must be 0, with its count."""
        return [
            ("lost", len(self.lost)),
            ("duplicated", len(self.duplicated)),
            ("wrong", len(self.wrong)),
            ("not ok", len(self.not_ok)),
            ("never asked for", len(self.unasked)),
            ("out of order", len(self.out_of_order)),
            ("lag", sum(self.lag.values())),
        ]


def judge(
    asked: Sequence[Asked],
    answers: Sequence[Answer],
    *,
    expected: Mapping[str, str],
    acknowledged: Iterable[str] = (),
    in_order: bool = False,
    tolerated: Callable[[Answer], bool] = lambda _: False,
    each_record: bool = False,
    lag: Mapping[TopicPartition, int] | None = None,
) -> Verdict:
    """Hold the answers against what was asked.

    `expected` is the right text of each id; an id without one is only counted. `acknowledged` are ids that the broker
    said it has: one that lies in no request topic is lost too. `in_order` asks that each key's answers come in the
    order of their requests. `lag` is what the group has still to read, by partition.

    With `each_record` deduplication is off: each record of a request may have an answer of its own, but no more.

    A request that was sent twice and lies in two units, since partitions were added between, may have an answer from
    each: deduplication goes by unit. That is `straddling`, and allowed. So is an answer that is not `ok` where
    `tolerated` says so.
    """
    verdict = Verdict(lag={tp: behind for tp, behind in (lag or {}).items() if behind != 0})
    places: dict[str, list[RecordLocation]] = defaultdict(list)
    for each in asked:
        places[each.id].append(each.at)
    found: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        found[answer.id].append(answer)
    verdict.asked = len(places)
    verdict.resent = len(asked) - len(places)
    verdict.answered = sum(each in found for each in places)
    verdict.lost = [each for each in places if each not in found]
    verdict.lost += [each for each in dict.fromkeys(acknowledged) if each not in places]
    verdict.unasked = [answer for answer in answers if answer.id not in places]
    for id_, several in found.items():
        if len(several) > 1:
            alone = _of_a_record_each if each_record else _straddles
            kind = verdict.straddling if alone(places[id_], several) else verdict.duplicated
            kind[id_] = several
    for answer in answers:
        if answer.status != "ok":
            (verdict.tolerated if tolerated(answer) else verdict.not_ok).append(answer)
        elif answer.id in expected and answer.text != expected[answer.id]:
            verdict.wrong.append(answer)
    if in_order:
        keys = {each.id: each.key for each in asked}
        verdict.out_of_order = _out_of_order(answers, keys)
    return verdict


def _straddles(places: Sequence[RecordLocation], several: Sequence[Answer]) -> bool:
    """Whether each of these answers is of another unit, and the request does lie in each."""
    units = {(at.topic, at.partition) for at in places}
    answered = {(answer.source.topic, answer.source.partition) for answer in several}
    return len(answered) == len(several) and answered <= units


def _of_a_record_each(places: Sequence[RecordLocation], several: Sequence[Answer]) -> bool:
    """Whether each of these answers is of another record."""
    return len({answer.source for answer in several} & set(places)) == len(several)


def _out_of_order(answers: Sequence[Answer], keys: Mapping[str, str | None]) -> list[tuple[Answer, Answer]]:
    """Answers of one key that come after an answer to a later request of it, with that one."""
    found: list[tuple[Answer, Answer]] = []
    latest: dict[tuple[str, str, int, int], Answer] = {}
    for answer in sorted(answers, key=lambda each: each.at):
        key = keys.get(answer.id)
        if key is None:
            continue
        # In one partition of `results` there is an order to speak of, and in one of the requests.
        series = (key, answer.source.topic, answer.source.partition, answer.at.partition)
        before = latest.get(series)
        if before is not None and before.source.offset > answer.source.offset:
            found.append((before, answer))
        else:
            latest[series] = answer
    return found


def place(at: RecordLocation) -> str:
    """A record's place, the topic's last words alone."""
    return f"{'.'.join(at.topic.split('.')[3:])}-{at.partition}@{at.offset}"


def details(verdict: Verdict, asked: Sequence[Asked], answers: Sequence[Answer]) -> list[str]:
    """Lines with every id at fault and all its records; the first few of each kind."""
    concerned: dict[str, list[str]] = {
        "lost": verdict.lost,
        "duplicated": list(verdict.duplicated),
        "wrong": [each.id for each in verdict.wrong],
        "not ok": [each.id for each in verdict.not_ok],
        "never asked for": [each.id for each in verdict.unasked],
        "out of order": [later.id for pair in verdict.out_of_order for later in pair],
    }
    lines: list[str] = []
    for kind, ids in concerned.items():
        for id_ in list(dict.fromkeys(ids))[:SHOWN]:
            lines.append(f"{kind}: {id_}")
            lines += [f"    request {place(each.at)}  key {each.key}" for each in asked if each.id == id_]
            lines += [f"    {each.describe()}" for each in answers if each.id == id_]
        if len(ids) > SHOWN:
            lines.append(f"{kind}: and {len(ids) - SHOWN} more")
    lines += [f"lag: {tp.topic}-{tp.partition} {behind}" for tp, behind in verdict.lag.items()]
    return lines
