"""Answers of a shadow beside those of the versions that answer: joined by request, and counted. Pure.

The shadow's are read first and held, `most` of them, the newest; then the others pass by, of which none is kept. So
memory is bounded by the sample, however many requests there were that the shadow did not take.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from headrace.ops.rollouts.agreement import Agreement, FieldAgreement
from headrace.ops.rollouts.evidence import Tally
from headrace.schemas.messages import Result

GAVE_UP = frozenset({"expired", "cancelled"})  # nobody answered


@dataclass(slots=True)
class Side:
    """What one of the two has answered, of the requests that both have."""

    statuses: Counter[str] = field(default_factory=Counter[str])
    versions: Counter[str] = field(default_factory=Counter[str])
    tally: Tally = field(default_factory=Tally)

    def add(self, result: Result) -> None:
        """Count an answer. Its latency is from its admission to its end: how long it waited is its lane's doing."""
        self.statuses[result.status] += 1
        self.versions[result.provenance.version] += 1
        timings = result.timings
        self.tally.add(
            result.status,
            generation_ms=max(0.0, timings.total_ms - timings.queued_ms),
            tokens=result.usage.completion_tokens,
            at_ms=0,
        )

    @property
    def failed(self) -> float | None:
        """The part of the answers that failed; None: there are none that say something of the version."""
        return self.tally.failed / self.tally.answers if self.tally.answers else None

    @property
    def valid(self) -> float | None:
        """The part of the outputs that was as it was asked for; None: there were no outputs."""
        outputs = self.tally.answers - self.tally.failed
        return (outputs - self.tally.invalid) / outputs if outputs else None

    @property
    def tokens(self) -> float | None:
        """Generated for an answer, on average; None: there are none."""
        return self.tally.tokens / self.tally.answers if self.tally.answers else None

    def as_json(self) -> dict[str, Any]:
        """As `rollout compare --json` prints it."""
        return {
            "versions": dict(self.versions.most_common()),
            "statuses": dict(self.statuses.most_common()),
            "failed": self.failed,
            "valid": self.valid,
            "p50_ms": self.tally.quantile_ms(0.5),
            "p95_ms": self.tally.quantile_ms(0.95),
            "tokens": self.tokens,
        }


class Pairing:
    """First `hold` each of the shadow's answers, then `meet` those of the others."""

    def __init__(self, most: int, examples: int) -> None:
        """`most`: answers that are held at a time; `examples`: of disagreement, for each field."""
        self._most = most
        self._held: dict[str, Result] = {}  # by request, the oldest first
        self.live = Side()
        self.shadow = Side()
        self.agreement = Agreement(examples)
        self.read = 0  # answers of the shadow
        self.repeated = 0  # of them, to a request that it had answered before: the last one counts
        self.left_out = 0  # of them, older ones for which there was no room
        self.gave_up: Counter[str] = Counter()  # of them, that nobody answered: by status
        self.pairs = 0
        self.same_status = 0

    @property
    def without_partner(self) -> int:
        """How many of the shadow's answers are held for which no other has come."""
        return len(self._held)

    def hold(self, result: Result) -> str | None:
        """An answer of the shadow. The id of the one that it put out, where there was no room for both."""
        self.read += 1
        if result.status in GAVE_UP:
            self.gave_up[result.status] += 1
            return None
        if self._held.pop(result.id, None) is not None:
            self.repeated += 1
        self._held[result.id] = result
        if len(self._held) <= self._most:
            return None
        self.left_out += 1
        oldest = next(iter(self._held))
        del self._held[oldest]
        return oldest

    def meet(self, live: Result) -> bool:
        """An answer that a caller got; whether it is to a request that the shadow has answered too."""
        shadow = self._held.get(live.id)
        if shadow is None or (live.status == "rejected" and _place(live) != _place(shadow)):
            return (
                False  # a malformed message may bear the id of a good one: its rejection is no answer to that
            )
        del self._held[live.id]
        self.pairs += 1
        self.live.add(live)
        self.shadow.add(shadow)
        self.same_status += live.status == shadow.status
        if live.status == "ok" and shadow.status == "ok":
            self.agreement.add(live.id, live.outputs, shadow.outputs)
        return True

    def as_json(self) -> dict[str, Any]:
        """As `rollout compare --json` prints it."""
        agreement = self.agreement
        return {
            "pairs": self.pairs,
            "shadow_answers": self.read,
            "without_partner": self.without_partner,
            "left_out": self.left_out,
            "repeated": self.repeated,
            "gave_up": dict(self.gave_up),
            "live": self.live.as_json(),
            "shadow": self.shadow.as_json(),
            "same_status": self.same_status / self.pairs if self.pairs else None,
            "values": _agreed(agreement.values),
            "fields": [{"field": name, **_agreed(found)} for name, found in sorted(agreement.fields.items())],
            "texts": {**_agreed(agreement.texts), "median_similarity": agreement.median_similarity},
        }


def _place(result: Result) -> tuple[str, int, int]:
    """Where the request lies that it answers."""
    source = result.provenance
    return source.source_topic, source.source_partition, source.source_offset


def _agreed(found: FieldAgreement) -> dict[str, Any]:
    return {
        "compared": found.compared,
        "equal": found.equal,
        "part": found.part,
        "examples": [each.as_json() for each in found.examples],
    }
