"""The schemas of typed results, for a codec that meets a fingerprint that it does not know."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.consumers.contracts import read_contracts
from headrace.schemas.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.schemas.settings import Settings

logger = logging.getLogger(__name__)


def frozen_result_schemas(settings: Settings) -> Callable[[], list[str]]:
    """What `Codec` takes for `result_schemas`: reads, when it is called, those of the contracts that are frozen,
    or were and left their results.

    Where the control topic cannot be read there are none, which is logged: the result is then said to be unreadable,
    and others are read.
    """

    def read() -> list[str]:
        try:
            return read_contracts(settings).result_schemas
        except HeadraceError as error:
            logger.warning("the schemas of typed results cannot be read from the control topic: %s", error)
            return []

    return read
