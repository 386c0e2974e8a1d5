"""What is seen of a group over connections that stay open."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from headrace.consumers.group_members import GroupLooker
from headrace.consumers.untyped_kafka import errors as kafka_errors
from headrace.schemas.errors import KafkaUnavailable
from headrace.topics.names import ContractNames

NAMES = ContractNames("p", "tagger", 1)


@dataclass
class Admin:
    """A cluster with an empty group; `counts`: partitions by topic, `wrong`: an error code instead."""

    counts: dict[str, int]
    wrong: dict[str, int] = field(default_factory=dict[str, int])

    def describe_groups(self, groups: list[str]) -> dict[str, Any]:
        return {group: {"group_state": "Empty", "error": None, "members": []} for group in groups}

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        return [
            {
                "name": topic,
                "error_code": self.wrong.get(topic, 0),
                "partitions": [{"partition_index": index} for index in range(self.counts[topic])],
            }
            for topic in topics
        ]


class Client:
    """Logs in which nothing lies."""

    def committed_offsets(self, partitions: Collection[Any], timeout_s: float) -> dict[Any, Any]:
        return {}

    def end_offsets(self, partitions: Collection[Any], timeout_ms: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)


@pytest.fixture
def admin() -> Admin:
    return Admin(dict.fromkeys(NAMES.request_topics, 4))


@pytest.fixture
def looker(admin: Admin) -> GroupLooker:
    return GroupLooker(NAMES, admin, cast("Any", Client()))


def test_units_that_were_added_since_it_was_opened_are_counted(admin: Admin, looker: GroupLooker) -> None:
    assert looker.look().units == 4
    first, *others = NAMES.request_topics
    admin.counts[first] = 6
    assert looker.look().units == 4, "a unit is a partition of every topic"
    admin.counts.update(dict.fromkeys(others, 6))
    found = looker.look()
    assert (found.units, set(found.waiting)) == (6, set(range(6)))


def test_a_topic_of_which_the_brokers_say_nothing_just_now_is_no_topic_without_units(
    admin: Admin, looker: GroupLooker
) -> None:
    admin.wrong[NAMES.request_topics[0]] = kafka_errors.LeaderNotAvailableError.errno
    with pytest.raises(KafkaUnavailable, match="partitions"):
        looker.look()
