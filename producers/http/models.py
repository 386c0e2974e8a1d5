"""Which contract a model's name means, and what `/v1/models` lists. Pure."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from headrace.consumers.catalogue import CatalogueRecords
from headrace.consumers.contracts import ContractId, contract_id
from headrace.producers.http.wanted import ApiError
from headrace.schemas.errors import UsageError
from headrace.schemas.messages import JsonObject


@dataclass(frozen=True, slots=True)
class Served:
    """A contract that a name means. `has_output`: all its outputs are held to a schema of its own.

    `has_tool_parser`: the version that a worker was ready with last can tell a call of a tool from text. A worker of
    another version refuses by itself what it cannot do.
    """

    contract: ContractId
    has_output: bool
    max_model_len: int | None  # tokens, prompt and output together; None: not known
    has_tool_parser: bool = False


def pinned(name: str) -> ContractId | None:
    """The contract of `movie-tagger@3` or `movie-tagger/3`; None for a name that pins none."""
    try:
        return contract_id(name.replace("@", "/", 1) if "/" not in name else name)
    except UsageError:
        return None


def resolve(name: str, records: CatalogueRecords) -> Served:
    """What a model's name means: an alias, a contract (`movie-tagger@3`), or a model that has one contract.

    A contract that nobody has written down yet is taken at its word: its topics will tell. Raises ApiError (404).
    """
    alias = records.contracts.aliases.get(name)
    if alias is not None:
        return served((alias.model, alias.number), records)
    of = pinned(name)
    if of is not None:
        return served(of, records)
    numbers = [number for model, number in records.known if model == name]
    if len(numbers) == 1:
        return served((name, numbers[0]), records)
    if numbers:
        choices = " or ".join(f"{name}@{number}" for number in numbers)
        raise _not_found(
            f"The model `{name}` has {len(numbers)} contracts, and no alias says which one is meant: "
            f"ask for {choices}."
        )
    known = names(records)
    close = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean `{close[0]}`?" if close else f" There are: {', '.join(known[:20]) or 'none'}."
    raise _not_found(f"The model `{name}` does not exist.{hint}")


def _not_found(message: str) -> ApiError:
    return ApiError(404, message, reason="model_not_found", param="model")


def served(of: ContractId, records: CatalogueRecords) -> Served:
    """What is known of a contract."""
    frozen, latest = records.contracts.contracts.get(of), records.latest(of)
    has_output = (
        frozen.contract.output is not None if frozen is not None else bool(latest and latest.has_output)
    )
    if latest is None:
        return Served(of, has_output, None)
    return Served(of, has_output, latest.max_model_len, latest.calls_tools)


def names(records: CatalogueRecords) -> list[str]:
    """Every name that `resolve` takes, aliases first; models that have one contract go by their bare names."""
    known = records.known
    models = [model for model, _ in known]
    bare = [model for model in dict.fromkeys(models) if models.count(model) == 1]
    return list(dict.fromkeys([*sorted(records.contracts.aliases), *bare, *(f"{m}@{n}" for m, n in known)]))


def listed(records: CatalogueRecords) -> JsonObject:
    """`/v1/models`."""
    return {"object": "list", "data": [described(name, records) for name in names(records)]}


def described(name: str, records: CatalogueRecords) -> JsonObject:
    """`/v1/models/NAME`. Raises ApiError (404)."""
    found = resolve(name, records)
    model, number = found.contract
    frozen, latest = records.contracts.contracts.get(found.contract), records.latest(found.contract)
    created_ms = frozen.at_ms if frozen is not None else latest.at_ms if latest is not None else 0
    return {
        "id": name,
        "object": "model",
        "created": created_ms // 1000,
        "owned_by": "headrace",
        "root": f"{model}@{number}",
        "parent": None,
        "max_model_len": found.max_model_len,
    }
