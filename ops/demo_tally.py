"""What the demo counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from headrace.schemas.messages import Result


@dataclass(slots=True)
class Tally:
    """What is known at the end."""

    sent: int = 0
    answered: dict[str, Result] = field(default_factory=dict[str, Result])  # by id, as the replies said
    published: Counter[str] = field(default_factory=Counter[str])  # by id, as `results` says
    invalid: list[str] = field(
        default_factory=list[str]
    )  # ids whose published value its schema does not accept
    seconds: float = 0.0  # from the first request sent to the last answer
    retried: int = 0
    dead: int = 0

    @property
    def lost(self) -> int:
        """Requests without a result in the topic."""
        return self.sent - len(self.published)

    @property
    def doubled(self) -> int:
        """Results beyond the first of each request."""
        return self.published.total() - len(self.published)

    @property
    def ok(self) -> int:
        """Requests answered with a whole and valid result."""
        return sum(result.status == "ok" for result in self.answered.values())

    @property
    def tokens(self) -> int:
        """Tokens generated."""
        return sum(result.usage.completion_tokens for result in self.answered.values())

    @property
    def passed(self) -> bool:
        """Nothing lost, nothing doubled, nothing invalid, and every request answered."""
        return self.sent > 0 and self.ok == self.sent and not (self.lost or self.doubled or self.invalid)
