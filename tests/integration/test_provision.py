"""Topics on a real broker: created, altered, added to, and never made smaller."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.structs import OffsetAndMetadata
from waiting import wait_until

from headrace.schemas.errors import BrokerNotFound, KafkaUnavailable, TopicsError
from headrace.schemas.settings import Settings
from headrace.topics import admin as admin_module
from headrace.topics.admin import open_admin
from headrace.topics.changes import AddPartitions, AlterConfig, Change, Create, Same, differs
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line, compare, live_brokers

SMALL = LayoutOptions(partitions=2)
MORE = LayoutOptions(partitions=3)
ENOUGH_S = 30.0


@pytest.fixture
def settings(kafka_bootstrap: str, unique_prefix: str) -> Settings:
    return Settings(bootstrap_servers=kafka_bootstrap, prefix=unique_prefix)


@pytest.fixture
def names(settings: Settings) -> ContractNames:
    return ContractNames(settings.prefix, "tagger", 1)


@pytest.fixture
def admin(settings: Settings) -> Iterator[Any]:
    with open_admin(settings, "looking at what is there") as client:
        yield client


def partitions(admin: Any, topic: str) -> int:
    (found,) = admin.describe_topics([topic])
    return len(found["partitions"])


def send(settings: Settings, topic: str, partition: int, count: int) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, acks="all")
    sent = [producer.send(topic, b"{}", partition=partition) for _ in range(count)]
    for future in sent:
        future.get(timeout=ENOUGH_S)
    producer.close()


def commit(settings: Settings, names: ContractNames, topic: str, partition: int, offset: int) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=settings.bootstrap_servers, group_id=names.group, enable_auto_commit=False
    )
    where = TopicPartition(topic, partition)
    consumer.assign([where])
    consumer.commit({where: OffsetAndMetadata(offset, "", -1)})
    consumer.close()


def only(changes: list[Change], kind: type[Change]) -> list[Any]:
    return [each for each in changes if type(each) is kind]


def test_topics_are_created_as_they_are_to_be_and_a_second_time_nothing_is_done(
    settings: Settings, names: ContractNames, admin: Any
) -> None:
    created = bring_in_line(settings, names, SMALL)
    assert len(only(created, Create)) == len(created) == 8
    assert partitions(admin, names.results) == 2
    again = compare(settings, names)  # without --partitions: what is there
    assert only(again, Same) == again
    assert not differs(bring_in_line(settings, names, SMALL))


def test_comparing_creates_nothing(settings: Settings, names: ContractNames, admin: Any) -> None:
    assert len(only(compare(settings, names, SMALL), Create)) == 8
    assert names.results not in admin.list_topics()


def test_a_second_contract_finds_the_shared_topics_there(settings: Settings, names: ContractNames) -> None:
    bring_in_line(settings, names, SMALL)
    second = ContractNames(settings.prefix, "tagger", 2)
    assert {each.topic for each in bring_in_line(settings, second, SMALL) if isinstance(each, Same)} == {
        f"{settings.prefix}.replies",
        f"{settings.prefix}.control",
    }


def test_a_changed_config_is_altered_and_what_others_set_stays(
    settings: Settings, names: ContractNames, admin: Any
) -> None:
    bring_in_line(settings, names, SMALL)
    by_hand = {"retention.ms": "1234567", "compression.type": "lz4"}
    admin.alter_configs([ConfigResource("TOPIC", names.results, by_hand)])
    wait_until(lambda: differs(compare(settings, names)), ENOUGH_S, "the broker to tell the new values")
    (change,) = only(bring_in_line(settings, names, SMALL), AlterConfig)
    assert change == AlterConfig(names.results, {"retention.ms": ("1234567", str(7 * 24 * 60 * 60 * 1000))})
    assert not differs(compare(settings, names))
    configs = admin.describe_configs([ConfigResource("TOPIC", names.results)])["topic"][names.results]
    assert configs["compression.type"]["value"] == "lz4"


def test_a_config_can_be_given_and_a_wrong_one_is_the_brokers_word(
    settings: Settings, names: ContractNames
) -> None:
    chosen = LayoutOptions(partitions=2, configs={("requests", "retention.bytes"): "1048576"})
    bring_in_line(settings, names, chosen)
    assert not differs(compare(settings, names, chosen))
    wrong = LayoutOptions(configs={("dead", "retention.ms"): "long"})
    with pytest.raises(TopicsError, match=r"altering .*\.dead: .*retention\.ms.*Not a number"):
        bring_in_line(settings, names, wrong)


def test_partitions_are_added_only_once_all_requests_are_done(
    settings: Settings, names: ContractNames, admin: Any
) -> None:
    bring_in_line(settings, names, SMALL)
    lane = names.requests("backfill")
    send(settings, lane, 1, 3)
    commit(settings, names, lane, 1, 2)
    with pytest.raises(TopicsError, match=rf"nothing was changed.*1 in {lane}.*--accept-reorder"):
        bring_in_line(settings, names, MORE)
    assert partitions(admin, lane) == 2
    commit(settings, names, lane, 1, 3)
    # the group's offsets can be those of a moment ago
    changes = wait_until(
        lambda: (found := compare(settings, names, MORE)) and only(found, AddPartitions),
        ENOUGH_S,
        "no unread",
    )
    assert {each.topic for each in changes} == {*names.request_topics, names.results}
    bring_in_line(settings, names, MORE)
    assert {partitions(admin, topic) for topic in (*names.request_topics, names.results)} == {3}
    assert not differs(compare(settings, names))


def test_requests_that_no_group_has_ever_read_are_unread(settings: Settings, names: ContractNames) -> None:
    bring_in_line(settings, names, SMALL)
    send(settings, names.requests("interactive"), 0, 1)
    with pytest.raises(TopicsError, match=r"1 in .*\.requests\.interactive"):
        bring_in_line(settings, names, MORE)


def test_partitions_are_added_under_unread_requests_where_that_is_accepted(
    settings: Settings, names: ContractNames, admin: Any
) -> None:
    bring_in_line(settings, names, SMALL)
    send(settings, names.requests("standard"), 0, 1)
    bring_in_line(settings, names, LayoutOptions(partitions=3, accept_reorder=True))
    assert partitions(admin, names.requests("standard")) == 3


def test_partitions_are_never_taken_away_and_then_nothing_else_is_done(
    settings: Settings, names: ContractNames, admin: Any
) -> None:
    bring_in_line(settings, names, MORE)
    admin.delete_topics([names.dead])
    wait_until(lambda: names.dead not in admin.list_topics(), ENOUGH_S, "the topic to be gone")
    with pytest.raises(TopicsError, match=r"nothing was changed.*cannot take any away.*--partitions 3"):
        bring_in_line(settings, names, SMALL)
    assert names.dead not in admin.list_topics()


def test_more_replicas_than_brokers_are_refused_with_what_to_do(
    settings: Settings, names: ContractNames, admin: Any
) -> None:
    too_many = LayoutOptions(partitions=1, replication=live_brokers(admin) + 1)
    with pytest.raises(TopicsError, match=r"creating .*; give --replication no more than there are brokers"):
        bring_in_line(settings, names, too_many)


def test_no_broker_there_is_said_with_the_setting_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "CONNECT_TIMEOUT_MS", 500)
    settings = Settings(bootstrap_servers="127.0.0.1:1")
    with pytest.raises(KafkaUnavailable, match="check HEADRACE_BOOTSTRAP_SERVERS"):
        compare(settings, ContractNames("p", "m", 1))


def test_no_broker_named_is_said_with_the_setting_to_set() -> None:
    with pytest.raises(BrokerNotFound, match="set HEADRACE_BOOTSTRAP_SERVERS"):
        compare(Settings(bootstrap_servers=None), ContractNames("p", "m", 1))


def test_any_broker_is_brought_in_line_and_then_needs_nothing(
    broker_bootstrap: str, unique_prefix: str
) -> None:
    settings = Settings(bootstrap_servers=broker_bootstrap, prefix=unique_prefix)
    names = ContractNames(unique_prefix, "tagger", 1)
    assert len(only(bring_in_line(settings, names, SMALL), Create)) == 8
    assert not differs(compare(settings, names))
