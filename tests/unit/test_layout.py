"""What the topics of a contract are to look like."""

from __future__ import annotations

import pytest

from headrace.schemas.errors import SettingsError
from headrace.topics.layout import Retention, TopicLayout, default_replication, layout, with_configs
from headrace.topics.names import ContractNames

NAMES = ContractNames("p", "tagger", 2)
MIB = 1024 * 1024


def made(**options: int) -> dict[str, TopicLayout]:
    given = {"replication": 3, "max_record_bytes": 8 * MIB, **options}
    return {each.name: each for each in layout(NAMES, **given)}


def test_a_contract_has_its_topics_and_the_two_that_all_share() -> None:
    assert set(made()) == {
        "p.tagger.c2.requests.interactive",
        "p.tagger.c2.requests.standard",
        "p.tagger.c2.requests.backfill",
        "p.tagger.c2.results",
        "p.tagger.c2.dead",
        "p.tagger.c2.cancels",
        "p.replies",
        "p.control",
    }


@pytest.mark.parametrize("partitions", [1, 3, 16, 64])
def test_request_lanes_and_results_have_as_many_partitions_as_there_are_units(partitions: int) -> None:
    topics = made(partitions=partitions)
    units = {name for name, each in topics.items() if each.partitioning == "units"}
    assert units == {*NAMES.request_topics, NAMES.results}
    assert {topics[name].partitions for name in units} == {partitions}


def test_the_other_topics_do_not_grow_with_the_units() -> None:
    topics = made(partitions=64)
    assert {
        name: each.partitions for name, each in made(partitions=1).items() if each.partitioning != "units"
    } == {name: each.partitions for name, each in topics.items() if each.partitioning != "units"}
    assert topics[NAMES.cancels].partitions == 1
    assert topics["p.replies"].partitions == 32
    assert topics["p.control"].partitions == 1
    assert topics["p.control"].partitioning == "exact"


def test_control_is_compacted_and_nothing_else_is() -> None:
    policies = {name: each.configs["cleanup.policy"] for name, each in made().items()}
    assert policies.pop("p.control") == "compact"
    assert set(policies.values()) == {"delete"}


def test_requests_go_by_size_and_never_by_age() -> None:
    for lane in NAMES.request_topics:
        configs = made()[lane].configs
        assert configs["retention.ms"] == "-1"
        assert int(configs["retention.bytes"]) > 0
        assert int(configs["segment.bytes"]) <= int(configs["retention.bytes"])
        assert configs["message.timestamp.type"] == "LogAppendTime"


def test_dead_letters_are_kept_long_and_cancels_an_hour() -> None:
    topics = made()
    day = 24 * 60 * 60 * 1000
    assert int(topics[NAMES.dead].configs["retention.ms"]) >= 30 * day
    assert topics[NAMES.cancels].configs["retention.ms"] == str(60 * 60 * 1000)
    assert int(topics[NAMES.results].configs["retention.ms"]) >= day


def test_what_is_kept_a_short_time_closes_its_segments_soon_enough_to_be_deleted() -> None:
    for each in made().values():
        if 0 < int(each.configs.get("retention.ms", "-1")) < 24 * 60 * 60 * 1000:
            assert int(each.configs["segment.ms"]) < int(each.configs["retention.ms"])


@pytest.mark.parametrize("max_record_bytes", [64 * 1024, MIB, 8 * MIB, 64 * MIB])
def test_results_dead_letters_and_replies_hold_what_requests_cannot(max_record_bytes: int) -> None:
    topics = made(max_record_bytes=max_record_bytes)
    largest_request = max(int(topics[lane].configs["max.message.bytes"]) for lane in NAMES.request_topics)
    for name in (NAMES.results, NAMES.dead, "p.replies"):
        assert int(topics[name].configs["max.message.bytes"]) > max(largest_request, max_record_bytes)


@pytest.mark.parametrize(("replication", "in_sync"), [(1, "1"), (2, "1"), (3, "2"), (5, "2")])
def test_two_replicas_hold_what_is_acknowledged_where_one_may_fail(replication: int, in_sync: str) -> None:
    assert {each.configs["min.insync.replicas"] for each in made(replication=replication).values()} == {
        in_sync
    }


def test_a_topic_of_one_replica_is_not_asked_for_two_in_sync() -> None:
    results = made(replication=3)[NAMES.results]
    assert results.configs_at(1)["min.insync.replicas"] == "1"
    assert results.configs_at(3) == results.configs


def test_what_the_caller_set_for_in_sync_replicas_stays() -> None:
    set_by_hand = with_configs(list(made().values()), {("results", "min.insync.replicas"): "3"})
    results = next(each for each in set_by_hand if each.what == "results")
    assert results.configs_at(1)["min.insync.replicas"] == "3"


@pytest.mark.parametrize(("brokers", "replication"), [(0, 1), (1, 1), (2, 2), (3, 3), (30, 3)])
def test_replication_is_three_or_as_many_as_there_are_brokers(brokers: int, replication: int) -> None:
    assert default_replication(brokers) == replication


def test_retention_can_be_chosen() -> None:
    kept = Retention(requests_bytes=8 * MIB, dead_ms=5)
    topics = {each.name: each for each in layout(NAMES, replication=1, retention=kept, max_record_bytes=MIB)}
    assert topics[NAMES.requests("standard")].configs["retention.bytes"] == str(8 * MIB)
    assert topics[NAMES.dead].configs["retention.ms"] == "5"


def test_a_config_set_by_hand_goes_to_all_topics_of_its_kind_and_no_other() -> None:
    before = made()
    after = {
        each.name: each for each in with_configs(list(before.values()), {("requests", "retention.ms"): "7"})
    }
    for name, each in after.items():
        if name in NAMES.request_topics:
            assert each.configs == {**before[name].configs, "retention.ms": "7"}
        else:
            assert each == before[name]


def test_a_kind_of_topic_that_there_is_not_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"request\.retention\.ms: 'request' is none of .*requests"):
        with_configs(list(made().values()), {("request", "retention.ms"): "7"})


@pytest.mark.parametrize("wrong", [{"partitions": 0}, {"replication": 0}])
def test_numbers_that_cannot_be_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(SettingsError, match="whole numbers from 1"):
        made(**wrong)
