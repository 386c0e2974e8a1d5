"""Canonical JSON, and the digests that name schemas and packages in provenance. Pure."""

from __future__ import annotations

import hashlib
import json

from headrace.schemas.messages import JsonValue


def canonical_json(value: JsonValue) -> bytes:
    """The one way to write a JSON value down: keys sorted, no spaces, UTF-8.

    Raises ValueError for what JSON cannot hold (NaN, lone surrogates), TypeError for other types.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode()


def digest_of(value: JsonValue) -> str:
    """`sha256:<hex>` of the canonical JSON. Raises as `canonical_json` does."""
    return "sha256:" + hashlib.sha256(canonical_json(value)).hexdigest()
