"""Looking at a contract's group on a real Kafka, over connections that stay open."""

from __future__ import annotations

from kafka_members import WITHIN_S, admin_client, settings_for
from waiting import wait_until

from headrace.consumers.group_members import GroupMembers, look_at_group
from headrace.schemas.errors import KafkaUnavailable
from headrace.topics.names import ContractNames
from headrace.topics.provision import LayoutOptions, bring_in_line


def test_units_that_are_added_while_it_is_looked_at_are_seen(
    kafka_bootstrap: str, unique_prefix: str
) -> None:
    settings = settings_for(kafka_bootstrap, prefix=unique_prefix)
    names = ContractNames(unique_prefix, "tagger", 1)
    bring_in_line(settings, names, LayoutOptions(partitions=2, replication=1))
    with look_at_group(settings, names) as looker, admin_client(kafka_bootstrap) as admin:

        def seen(units: int) -> GroupMembers | None:
            try:
                found = looker.look()
            except KafkaUnavailable:  # there is no coordinator yet, or no leader
                return None
            return found if found.units == units else None

        wait_until(lambda: seen(2), WITHIN_S, "the first partitions")
        admin.create_partitions(dict.fromkeys(names.request_topics, 4))
        found = wait_until(lambda: seen(4), WITHIN_S, "the new partitions")
    assert found is not None
    assert set(found.waiting) == {0, 1, 2, 3}
