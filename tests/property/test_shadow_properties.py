"""Laws of a shadow: its sample, how far it agrees, which answers meet, and where it begins."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import pytest
from fake_kafka import FakeKafka
from fake_worker import NAMES, SOURCES, Clock, FakeWorker, RegistryCodec
from hypothesis import given, settings
from hypothesis import strategies as st
from property_examples import EXAMPLES
from worker_turns import clock_by_hand, run, send

from headrace.consumers import offset_encoding
from headrace.consumers.offset_encoding import Progress
from headrace.consumers.records import CommitPoint, TopicPartition
from headrace.consumers.starting import Start, where_a_shadow_starts, where_to_start
from headrace.ops.rollouts.agreement import WHOLE, Agreement, leaves, same, similarity
from headrace.ops.rollouts.pairing import Pairing
from headrace.schemas.headers import REQUEST_ID
from headrace.schemas.messages import Output, Provenance, Result
from headrace.schemas.strict_json import pointer
from headrace.workers.shadow import Shadow, is_sampled

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(-2, 2) | st.sampled_from(["", "a", "1"]),
    lambda within: (
        st.lists(within, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "/", "~"]), within)
    ),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "/", "~"]), VALUES)
TP = TopicPartition("headrace.tagger.c1.requests.standard", 0)
LIMIT = 256


@given(st.text(max_size=20), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=EXAMPLES, deadline=None)
def test_who_is_in_a_sample_is_in_each_larger_one(request_id: str, one: float, other: float) -> None:
    smaller, larger = sorted((one, other))
    assert not is_sampled(request_id, smaller) or is_sampled(request_id, larger)
    assert is_sampled(request_id, 1.0)
    assert not is_sampled(request_id, 0.0)


@given(st.integers(0, 10**9), st.sampled_from([0.01, 0.1, 0.5, 0.9]))
@settings(max_examples=50, derandomize=True, deadline=None)
def test_a_sample_is_near_its_share(first: int, share: float) -> None:
    """Of ids in a row, too: five standard deviations either way."""
    n = 5_000
    taken = sum(is_sampled(f"request-{number}", share) for number in range(first, first + n))
    assert abs(taken - n * share) <= 5 * (n * share * (1 - share)) ** 0.5


@given(VALUES, VALUES)
@settings(max_examples=EXAMPLES, deadline=None)
def test_values_are_equal_where_all_their_fields_are(one: Any, other: Any) -> None:
    assert same(one, one)
    assert same(one, other) is same(other, one)
    found = list(leaves(one, other))
    assert same(one, other) is all(same(live, shadow) for _, live, shadow in found)
    names = [pointer(path) or WHOLE for path, _, _ in found]
    assert len(set(names)) == len(names), "each field has a name of its own"


@given(st.lists(st.tuples(OBJECTS, OBJECTS), max_size=8))
@settings(max_examples=EXAMPLES, deadline=None)
def test_agreement_counts_each_field_of_each_pair_once(pairs: list[tuple[Any, Any]]) -> None:
    found = Agreement(2)
    for number, (live, shadow) in enumerate(pairs):
        found.add(str(number), [_output(live)], [_output(shadow)])
    assert found.values.compared == len(pairs)
    assert found.values.equal == sum(same(*pair) for pair in pairs)
    fields = [each for pair in pairs for each in leaves(*pair)]
    assert sum(each.compared for each in found.fields.values()) == len(fields)
    assert sum(each.equal for each in found.fields.values()) == sum(same(*each[1:]) for each in fields)
    for each in found.fields.values():
        assert len(each.examples) == min(2, each.compared - each.equal)


@given(st.text("ab ", max_size=30), st.text("ab ", max_size=30))
@settings(max_examples=EXAMPLES, deadline=None)
def test_similarity_is_a_part_and_whole_for_equal_texts(one: str, other: str) -> None:
    assert 0 <= similarity(one, other) <= 1
    assert similarity(one, one) == 1
    if not set(one.split()) & set(other.split()) and (one.split() or other.split()):
        assert similarity(one, other) == 0


@given(
    st.integers(1, 5),
    st.lists(st.integers(0, 9), max_size=20),
    st.lists(st.integers(0, 9), max_size=20),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_the_newest_answers_of_the_shadow_meet_at_most_one_other_each(
    most: int, shadow: list[int], live: list[int]
) -> None:
    pairing = Pairing(most, 1)
    expected: OrderedDict[int, None] = OrderedDict()
    for each in shadow:
        pairing.hold(_result(each, "4"))
        expected.pop(each, None)
        expected[each] = None
        while len(expected) > most:
            expected.popitem(last=False)
        assert pairing.without_partner <= most
    for each in live:
        assert pairing.meet(_result(each, "3")) is (each in expected)
        expected.pop(each, None)
    assert pairing.without_partner == len(expected)
    whole = pairing.pairs + pairing.without_partner + pairing.left_out + pairing.repeated
    assert whole == pairing.read == len(shadow), "every answer is in one count"


@given(
    st.integers(0, 20),
    st.integers(0, 20),
    st.one_of(st.none(), st.tuples(st.integers(0, 40), st.lists(st.integers(1, 10), max_size=4))),
    st.booleans(),
)
@settings(max_examples=EXAMPLES, deadline=None)
def test_a_shadow_begins_within_the_log_and_passes_over_what_others_would_stop_at(
    beginning: int, length: int, found: tuple[int, list[int]] | None, spoilt: bool
) -> None:
    end = beginning + length
    committed = None
    if found is not None:
        frontier, steps = found
        runs = tuple(range(frontier + 3 * step, frontier + 3 * step + 1) for step in sorted(set(steps)))
        metadata = offset_encoding.encode(frontier, Progress(frontier + 50, runs), LIMIT)
        committed = CommitPoint(frontier, "?" if spoilt else metadata)
    asked: dict[str, Any] = {
        "beginning": beginning,
        "end": end,
        "known": True,
        "acceptance": None,
        "limit": LIMIT,
        "group": "headrace.tagger.c1.shadow.4",
    }
    start = where_a_shadow_starts(TP, committed, **asked)
    assert beginning <= start.offset <= end
    if committed is None:
        assert start == Start(end, None)
        return
    assert start.committed is not None
    assert start.committed.offset <= start.offset
    others = where_to_start(TP, committed, **asked)
    if isinstance(others, Start):
        assert start == others
    # Nothing is served twice: what the group has done is behind it, or still in its done set, or out of the log.
    assert start.committed == committed or start.offset in (beginning, end)


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 3), st.integers(0, 12)),
        st.tuples(st.sampled_from(["turn", "commit", "finish", "die"]), st.integers(0, 3), st.just(0)),
    ),
    max_size=60,
)


@given(ACTIONS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_whenever_a_shadow_dies_each_request_of_its_sample_has_one_result_and_no_other_has_any(
    actions: list[tuple[str, int, int]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = clock_by_hand(patch)
        kafka = FakeKafka(SOURCES)
        shadow = _started(kafka, clock)
        sent: set[str] = set()
        for action, which, number in actions:
            clock.now += 0.2
            match action:
                case "send":
                    # A caller asks for one id in one unit, by its key; in whatever lane.
                    name = f"r{SOURCES[which].partition}-{number}"
                    send(kafka, SOURCES[which], name, "headrace.replies")
                    sent.add(name)
                case "turn":
                    shadow.pump.turn()
                case "commit" if shadow.batch is not None:
                    shadow.commit()
                case "finish" if shadow.works:
                    shadow.finish(which % len(shadow.works))
                case "die":
                    kafka.expel(shadow.member)
                    shadow = _started(kafka, clock)
                case _:
                    pass
        for _ in range(40):
            run(shadow, clock)
            while shadow.works:
                shadow.finish(0)
        published = [
            dict(record.headers)[REQUEST_ID].decode()
            for record in kafka.published
            if record.topic == NAMES.results  # else it is the dead letter of one that looks like a killer
        ]
        assert sorted(published) == sorted(each for each in sent if is_sampled(each, 0.5))
        assert shadow.replies.told == []
        assert all(kafka.committed[tp].offset == len(kafka.logs[tp]) for tp in SOURCES)


def _started(kafka: FakeKafka, clock: Clock) -> FakeWorker:
    """A shadow that has all partitions, and has begun to read them."""
    shadow = FakeWorker(kafka, RegistryCodec(), shadow=Shadow(0.5))
    for tp in SOURCES:
        kafka.assign(tp, shadow.member)
    run(shadow, clock)
    return shadow


def _output(value: Any) -> Output:
    return Output(text="", finish_reason="stop", value=value)


def _result(number: int, version: str) -> Result:
    source = Provenance(
        model="m",
        version=version,
        contract=1,
        engine="e",
        engine_version="1",
        slot="s",
        source_topic="t",
        source_partition=0,
        source_offset=number,
    )
    return Result(id=str(number), status="ok", provenance=source)
