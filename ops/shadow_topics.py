"""Whether a version may run as a shadow: the topics that it writes to have to be there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.consumers.partitions import partitions_of
from headrace.schemas.errors import TopicsError
from headrace.topics.names import ContractNames, ShadowNames

if TYPE_CHECKING:
    from headrace.schemas.package import Package
    from headrace.schemas.settings import Settings


def check_shadow_topics(settings: Settings, package: Package) -> None:
    """Raises TopicsError where topics are missing, or have fewer partitions than the contract has units.

    Also SettingsError for a version that no topic can be named by, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    names = ShadowNames.of(ContractNames(settings.prefix, package.model, package.contract), package.version)
    units = max(map(len, partitions_of(settings, names.request_topics).values()))
    mend = f"`headrace topics apply --package {package.file.parent} --shadow`"
    try:
        own = partitions_of(settings, [names.results, names.dead])
    except TopicsError:
        raise TopicsError(
            f"version {package.version} has no topics to write to as a shadow, {names.results} and {names.dead}: "
            f"{mend} creates them"
        ) from None
    if len(own[names.results]) < units:
        raise TopicsError(
            f"{names.results} has {len(own[names.results])} partitions, and the contract has {units} units: "
            f"{mend} adds the rest"
        )
