"""What it takes to bring a cluster in line with a layout."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace.topics.changes import (
    AddPartitions,
    AlterConfig,
    Change,
    ClusterState,
    Create,
    FoundTopic,
    Refuse,
    Same,
    diff,
    differs,
)
from headrace.topics.layout import TopicLayout, layout, with_configs
from headrace.topics.names import ContractNames

NAMES = ContractNames("p", "tagger", 1)
LANE = NAMES.requests("standard")
BROKER_DEFAULT = {"compression.type": "producer", "flush.ms": "9223372036854775807"}


def wanted(partitions: int = 4, replication: int = 1) -> list[TopicLayout]:
    return layout(NAMES, partitions=partitions, replication=replication, max_record_bytes=2**20)


def state(layouts: list[TopicLayout], unread: dict[str, int] | None = None) -> ClusterState:
    """A cluster that has these topics, with the brokers' own configs beside ours."""
    topics = {
        each.name: FoundTopic(each.partitions, each.replication, {**BROKER_DEFAULT, **each.configs})
        for each in layouts
    }
    return ClusterState(1, topics, unread or {})


def with_topic(found: ClusterState, name: str, **changed: object) -> ClusterState:
    return replace(found, topics={**found.topics, name: replace(found.topics[name], **changed)})  # type: ignore[arg-type]


def of(changes: list[Change], topic: str) -> list[Change]:
    return [each for each in changes if each.topic == topic]


def test_everything_is_created_on_an_empty_cluster() -> None:
    assert diff(wanted(), ClusterState(1, {})) == [Create(each) for each in wanted()]


def test_a_cluster_in_line_needs_nothing_whatever_else_is_set_there() -> None:
    changes = diff(wanted(), state(wanted()))
    assert changes == [Same(each.name) for each in wanted()]
    assert not differs(changes)


def test_only_the_configs_that_we_set_and_that_differ_are_altered() -> None:
    found = state(wanted())
    configs = {**wanted()[1].configs, "retention.bytes": "5", "compression.type": "lz4"}
    del configs["message.timestamp.type"]
    changes = diff(wanted(), with_topic(found, LANE, configs=configs))
    ours = wanted()[1].configs
    assert of(changes, LANE) == [
        AlterConfig(
            LANE,
            {
                "retention.bytes": ("5", ours["retention.bytes"]),
                "message.timestamp.type": (None, "LogAppendTime"),
            },
        )
    ]
    assert differs(changes)


def test_configs_that_a_broker_does_not_tell_are_not_altered_and_that_is_said() -> None:
    (change,) = of(diff(wanted(), with_topic(state(wanted()), LANE, configs=None)), LANE)
    assert isinstance(change, Same)
    assert "cannot be read" in change.note


def test_partitions_are_added_to_all_lanes_and_results_together() -> None:
    changes = [each for each in diff(wanted(8), state(wanted(4))) if not isinstance(each, Same)]
    assert changes == [AddPartitions(topic, 4, 8) for topic in (*NAMES.request_topics, NAMES.results)]


def test_no_partition_is_added_anywhere_while_a_single_request_is_unread() -> None:
    changes = diff(wanted(8), state(wanted(4), {NAMES.requests("backfill"): 1, LANE: 0}))
    refused = [each for each in changes if isinstance(each, Refuse)]
    assert {each.topic for each in refused} == {*NAMES.request_topics, NAMES.results}
    assert "1 in p.tagger.c1.requests.backfill" in refused[0].reason
    assert "--accept-reorder" in refused[0].reason
    assert not any(isinstance(each, AddPartitions) for each in changes)


def test_unread_requests_do_not_matter_where_no_partition_is_added() -> None:
    assert not differs(diff(wanted(4), state(wanted(4), {LANE: 9})))


def test_partitions_are_added_under_unread_requests_where_that_is_accepted() -> None:
    changes = diff(wanted(8), state(wanted(4), {LANE: 9}), accept_reorder=True)
    assert sum(isinstance(each, AddPartitions) for each in changes) == 4


def test_partitions_are_never_taken_away() -> None:
    changes = diff(wanted(4), state(wanted(8)), accept_reorder=True)
    refused = [each for each in changes if isinstance(each, Refuse)]
    assert {each.topic for each in refused} == {*NAMES.request_topics, NAMES.results}
    assert "--partitions 8" in refused[0].reason


def test_a_lane_that_cannot_shrink_keeps_the_others_from_growing() -> None:
    found = with_topic(state(wanted(4)), LANE, partitions=8)
    changes = diff(wanted(6), found)
    assert not any(isinstance(each, AddPartitions) for each in changes)
    assert {each.topic for each in changes if isinstance(each, Refuse)} == {
        *NAMES.request_topics,
        NAMES.results,
    }


def test_results_are_not_created_at_odds_with_the_lanes() -> None:
    found = state([each for each in wanted(4) if each.name != NAMES.results], {LANE: 3})
    (change,) = of(diff(wanted(8), found), NAMES.results)
    assert isinstance(change, Refuse)
    assert of(diff(wanted(4), found), NAMES.results) == [Create(wanted(4)[3])]


def test_more_partitions_than_wanted_are_left_alone_where_they_do_no_harm() -> None:
    (change,) = of(diff(wanted(), with_topic(state(wanted()), "p.replies", partitions=64)), "p.replies")
    assert isinstance(change, Same)
    assert "64 partitions" in change.note


def test_control_with_a_second_partition_is_refused() -> None:
    (change,) = of(diff(wanted(), with_topic(state(wanted()), "p.control", partitions=2)), "p.control")
    assert isinstance(change, Refuse)
    assert "must have 1" in change.reason


def test_missing_partitions_of_replies_are_added_while_requests_are_unread() -> None:
    found = with_topic(state(wanted(), {LANE: 5}), "p.replies", partitions=2)
    assert of(diff(wanted(), found), "p.replies") == [AddPartitions("p.replies", 2, 32)]


def test_another_number_of_replicas_is_said_and_left() -> None:
    """A topic made on one broker, now compared on three: two replicas in sync would stop every write to it."""
    changes = diff(wanted(replication=3), state(wanted(replication=1)))
    assert not differs(changes)
    assert all(isinstance(each, Same) and "1 replica, not 3" in each.note for each in changes)


@pytest.mark.parametrize("partitions", [4, 8])
def test_the_outcome_of_applying_needs_nothing_more(partitions: int) -> None:
    assert not differs(diff(wanted(partitions), state(wanted(partitions))))


@pytest.mark.parametrize(
    ("topic", "config", "longer", "shorter"),
    [
        (LANE, "retention.bytes", str(4 * 2**30), "5"),
        (LANE, "retention.bytes", "-1", "0"),
        (NAMES.results, "retention.ms", str(8 * 24 * 60 * 60 * 1000), "60000"),
        (NAMES.dead, "retention.ms", "-1", "60000"),
    ],
)
def test_what_is_kept_for_longer_than_by_default_stays_and_what_is_not_is_altered(
    topic: str, config: str, longer: str, shorter: str
) -> None:
    """Unread requests would go with the difference, when the topics are applied for another reason."""
    layouts = {each.name: each for each in wanted()}

    def changed(value: str) -> list[Change]:
        configs = {**layouts[topic].configs, config: value}
        return of(diff(wanted(), with_topic(state(wanted()), topic, configs=configs)), topic)

    default = layouts[topic].configs[config]
    assert changed(longer) == [
        Same(topic, f"{config} is {longer}, longer than {default}: left as it is (--set alters it)")
    ]
    assert changed(shorter) == [AlterConfig(topic, {config: (shorter, default)})]


def test_a_retention_that_is_asked_for_replaces_a_longer_one() -> None:
    asked = with_configs(wanted(), {("requests", "retention.bytes"): "1000000"})
    assert of(diff(asked, state(wanted())), LANE) == [
        AlterConfig(LANE, {"retention.bytes": (str(2**30), "1000000")})
    ]


def test_replies_are_kept_for_no_longer_than_they_are_worth_reading() -> None:
    replies = next(each for each in wanted() if each.what == "replies")
    configs = {**replies.configs, "retention.ms": "-1"}
    (change,) = of(diff(wanted(), with_topic(state(wanted()), replies.name, configs=configs)), replies.name)
    assert isinstance(change, AlterConfig)
