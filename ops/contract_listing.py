"""The contracts of a prefix side by side, each with who asks it and who serves it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.consumers.catalogue import CatalogueRecords
from headrace.consumers.contract_traffic import ContractTraffic, LastRequest, read_traffic
from headrace.consumers.contracts import ContractId, ContractRecords, FrozenContract, output_digest
from headrace.consumers.control import read_into
from headrace.producers.exchange import ASKED
from headrace.schemas.errors import HeadraceError
from headrace.topics.names import ContractNames

if TYPE_CHECKING:
    from headrace.consumers.records import Record
    from headrace.consumers.retirements import Retirement
    from headrace.schemas.messages import JsonObject
    from headrace.schemas.settings import Settings

SHOWN_ATTRIBUTES = 3
SHOWN_TEXT = 60  # characters of what a caller says of itself


@dataclass(frozen=True, slots=True)
class ListedContract:
    """A contract that was frozen or served, or of which a part is removed. `traffic` None: not looked at."""

    of: ContractId
    frozen: FrozenContract | None
    aliases: Sequence[str]
    retiring: Retirement | None
    traffic: ContractTraffic | None

    def as_json(self, window_s: float) -> JsonObject:
        """As `contracts list --json` prints it; the traffic is that of the last `window_s` seconds."""
        frozen, retiring = self.frozen, self.retiring
        return {
            "model": self.of[0],
            "number": self.of[1],
            "digest": None if frozen is None else frozen.contract.digest,
            "output_digest": None if frozen is None else output_digest(frozen.contract),
            "aliases": list(self.aliases),
            "overrides": [] if frozen is None else [each.version_digest for each in frozen.overrides],
            "typed_results": frozen is not None and frozen.result_schema is not None,
            "at": None if frozen is None else frozen.at_ms,
            "by": None if frozen is None else frozen.by,
            "retiring": None if retiring is None else {"by": retiring.by, "at": retiring.at_ms},
            "traffic": None if self.traffic is None else _traffic_json(self.traffic, window_s),
        }


@dataclass(frozen=True, slots=True)
class Listing:
    """All contracts, in order. `no_traffic`: why their traffic could not be read; None: it was, or nobody asked."""

    contracts: Sequence[ListedContract]
    records: ContractRecords
    no_traffic: str | None = None


def list_all(settings: Settings, window_s: float | None) -> Listing:
    """The contracts now; with their traffic of the last `window_s` seconds, unless that is None.

    Raises TopicsError where the control topic does not exist, KafkaUnavailable, KafkaFailed, BrokerNotFound.
    """
    catalogue = CatalogueRecords()

    def take(record: Record) -> None:
        catalogue.take(record.key, record.value, record.offset)

    read_into(settings, take)
    records = catalogue.contracts
    removing = {of: each for of, each in records.retired.items() if each.is_removing}
    known = sorted({*catalogue.known, *removing})
    traffic: dict[ContractNames, ContractTraffic] = {}
    no_traffic = None
    if window_s is not None:
        try:
            traffic = read_traffic(settings, [ContractNames(settings.prefix, *of) for of in known], window_s)
        except HeadraceError as error:
            no_traffic = str(error)
    listed = [
        ListedContract(
            of,
            records.contracts.get(of),
            records.aliases_of(of),
            removing.get(of),
            traffic.get(ContractNames(settings.prefix, *of)),
        )
        for of in known
    ]
    return Listing(listed, records, no_traffic)


# --- what can be said of a caller ---


def caller_of(last: LastRequest) -> str:
    """Who sent a request, in the words of the request: `tenant search, user anna`."""
    said: list[str] = []
    if last.tenant is not None:
        said.append(f"tenant {last.tenant}")
    if last.job is not None:
        said.append(f"job {last.job}")
    attributes = [(name, value) for name, value in sorted(last.attributes.items()) if name != ASKED]
    said += [f"{name} {value}" for name, value in attributes[:SHOWN_ATTRIBUTES]]
    if len(attributes) > SHOWN_ATTRIBUTES:
        said.append(f"{len(attributes) - SHOWN_ATTRIBUTES} more attributes")
    if last.reply_to is not None:
        said.append(f"replies to {last.reply_to}")
    if last.sent_again is not None:
        said.append(f"sent again because of {last.sent_again}")
    if last.unreadable is not None:
        said.append(f"cannot be read: {last.unreadable}")
    elif not said:
        key = "" if last.key in (None, last.id) else f"key {last.key}, "
        said.append(f"not said ({key}id {last.id})")
    return ", ".join(_shortened(each) for each in said)


def _shortened(text: str) -> str:
    line = "".join(each if each.isprintable() else " " for each in text)
    return line if len(line) <= SHOWN_TEXT else f"{line[: SHOWN_TEXT - 3]}..."


def per_minute(requests: int, window_s: float) -> str:
    """A rate, as exact as it is worth."""
    rate = requests * 60 / window_s
    return f"{rate:,.0f}" if rate >= 10 or rate == 0 else f"{rate:.2g}"


def workers_of(traffic: ContractTraffic) -> str:
    """`version 3: 2, version 4: 1`; "none"."""
    live = sorted(traffic.live().items())
    return ", ".join(f"version {version or '?'}: {count}" for version, count in live) or "none"


def shown_age(at_ms: int, now_ms: int) -> str:
    """`12 s ago`, `3 min ago`, `5 h ago`, `2 days ago`."""
    if at_ms < 0:
        return "at an unknown time"
    seconds = max(0, now_ms - at_ms) // 1000
    for unit, name in ((86_400, "days"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds // unit} {name} ago"
    return f"{seconds} s ago"


def _traffic_json(traffic: ContractTraffic, window_s: float) -> JsonObject:
    return {
        "window_s": window_s,
        "requests": traffic.recent,
        "per_minute": traffic.recent * 60 / window_s,
        "not_done": traffic.waiting,
        "held": traffic.held,
        "workers": dict(traffic.live()),
        "missing_topics": list(traffic.missing),
        "last_request": None if traffic.last is None else _last_json(traffic.last),
    }


def _last_json(last: LastRequest) -> JsonObject:
    return {
        "at": last.at_ms,
        "topic": last.place.topic,
        "partition": last.place.partition,
        "id": last.id,
        "key": last.key,
        "tenant": last.tenant,
        "job": last.job,
        "attributes": {**last.attributes},
        "reply_to": last.reply_to,
        "sent_again": last.sent_again,
        "unreadable": last.unreadable,
    }
