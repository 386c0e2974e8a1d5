"""Who calls the endpoint, and what he may take of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from headrace.schemas.messages import Message

AtLeastOne = Annotated[int, Field(ge=1, le=2**31 - 1)]
LONGEST_NAME = 256  # characters: what a message's identifier may have


class Limits(Message):
    """What one account may take of one instance of the endpoint; None: as much as there is."""

    max_concurrent: AtLeastOne | None = None  # requests at a time
    requests_per_minute: AtLeastOne | None = None
    tokens_per_minute: AtLeastOne | None = None  # of prompts and answers together

    @property
    def anything(self) -> bool:
        """Whether anything is limited."""
        return self != UNLIMITED


UNLIMITED = Limits()


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a call. `tenant` None: nobody has said for whom; `key_id` None: he came without a key."""

    tenant: str | None = None
    key_id: str | None = None
    name: str = "anyone"  # what the key is called
    limits: Limits = field(default=UNLIMITED)  # of the key


ANYONE = Caller()


def is_name(text: str) -> bool:
    """Whether a key or a tenant may be called so: printable, and no blanks at its ends."""
    return 0 < len(text) <= LONGEST_NAME and text.isprintable() and text == text.strip()
