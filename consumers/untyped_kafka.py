"""kafka-python's classes as we use them: it ships no types, so each is `Any` here, once and for all."""

from __future__ import annotations

from importlib import import_module
from typing import Any

errors: Any = import_module("kafka.errors")

_kafka: Any = import_module("kafka")
_admin: Any = import_module("kafka.admin")
_subscription: Any = import_module("kafka.consumer.subscription_state")
_coordinator: Any = import_module("kafka.coordinator.consumer")
_assignors: Any = import_module("kafka.coordinator.assignors.abstract")
_metadata: Any = import_module("kafka.protocol.consumer.metadata")
_structs: Any = import_module("kafka.structs")
_net: Any = import_module("kafka.net.compat")
_util: Any = import_module("kafka.util")

KafkaConsumer: Any = _kafka.KafkaConsumer
KafkaAdminClient: Any = _kafka.KafkaAdminClient
MemberToRemove: Any = _admin.MemberToRemove
ConsumerRebalanceListener: Any = _subscription.ConsumerRebalanceListener
TopicPartitionState: Any = _subscription.TopicPartitionState
AbstractPartitionAssignor: Any = _assignors.AbstractPartitionAssignor
RebalanceProtocol: Any = _assignors.RebalanceProtocol
ConsumerCoordinator: Any = _coordinator.ConsumerCoordinator
ConsumerProtocolSubscription: Any = _metadata.ConsumerProtocolSubscription
ConsumerProtocolAssignment: Any = _metadata.ConsumerProtocolAssignment
ConsumerGroupMetadata: Any = _structs.ConsumerGroupMetadata
MemberState: Any = _structs.MemberState
OffsetAndMetadata: Any = _structs.OffsetAndMetadata
KafkaTopicPartition: Any = _structs.TopicPartition
KafkaNetClient: Any = _net.KafkaNetClient
WeakMethod: Any = _util.WeakMethod
