"""OpenAI's batch files: a line is a call of the HTTP endpoint, and is translated as that translates it.

    {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "movie-tagger", ...}}

A job runs on one contract: that of its `model`, else of the model that the first line names. A line that names a model
of another contract is refused as a line; a name that means nothing here is refused too, unless the job has a `model`.
The lane is the job's. `prompt_cache_key` is recorded alone: requests of a job are spread over all partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from headrace.producers.backfill.failures import BatchCallRefused, BatchLineInvalid
from headrace.producers.backfill.rows import outcome_of
from headrace.producers.http.caller import Caller
from headrace.producers.http.chat import wanted_of_chat
from headrace.producers.http.completions import wanted_of_completion
from headrace.producers.http.given import model_of
from headrace.producers.http.models import resolve
from headrace.producers.http.parameters import PATHS
from headrace.producers.http.refusing import invalid, shortened, unsupported
from headrace.producers.http.service import requests_of
from headrace.producers.http.typed_values import without_nulls
from headrace.producers.http.wanted import ApiError, Wanted
from headrace.schemas.digest import digest_of

if TYPE_CHECKING:
    from headrace.consumers.catalogue import CatalogueRecords
    from headrace.producers.backfill.contract_view import ContractView
    from headrace.producers.backfill.job import JobSpec
    from headrace.producers.backfill.outcome import Outcome
    from headrace.producers.backfill.source import RowFault
    from headrace.producers.http.wanted import Endpoint
    from headrace.schemas.messages import JsonObject, Result

MAX_NAMES: Final = 1_000  # of models that are remembered
_ENDPOINTS: Final[dict[str, Endpoint]] = {path: endpoint for endpoint, path in PATHS.items()}
_HURRIED: Final = frozenset({"priority", "fast", "scale"})  # service tiers that a batch has not
_KEY: Final = "prompt_cache_key"


def batch_model(lines: Iterable[JsonObject | RowFault]) -> str | None:
    """The model that the first line with one names."""
    for line in lines:
        body = line.get("body") if isinstance(line, dict) else None
        model = cast("JsonObject", body).get("model") if isinstance(body, dict) else None
        if isinstance(model, str) and model:
            return model
    return None


def custom_id_of(line: JsonObject) -> str | None:
    """A line's own id, where it has one."""
    given = line.get("custom_id")
    return given if isinstance(given, str) and given else None


class BatchMapping:
    """How lines are asked about: see `mapping.py`.

    The value of an Outcome is the whole result, `ok` or not: the answer's body needs its line too (`batch_lines.py`).
    """

    def __init__(self, job: JobSpec, view: ContractView, records: CatalogueRecords) -> None:
        """`records` say what the models' names mean."""
        self._job, self._view, self._records = job, view, records
        self._caller = Caller(tenant=job.tenant)
        self._of_name: dict[str, ApiError | None] = {}
        self.output_schema = view.contract.output
        self.digest = digest_of(
            {"openai_batch": 1, "contract": list(view.id), "model": job.model is not None}
        )

    def request_of(self, row: JsonObject) -> JsonObject:
        """See `Mapping`. Raises what `wanted` raises."""
        return self._asked(row)[1]

    def wanted(self, row: JsonObject) -> Wanted:
        """What a line's call wants. Raises BatchLineInvalid for what is no call, BatchCallRefused for one refused."""
        return self._asked(row)[0]

    def outcome_of(self, result: Result) -> Outcome:
        """See `Mapping`."""
        value = result.model_dump(mode="json", exclude_none=True)
        return replace(outcome_of(result, parses=False), value=value)

    def _asked(self, line: JsonObject) -> tuple[Wanted, JsonObject]:
        endpoint, body = _call(line)
        try:
            wanted = self._translated(endpoint, body)
            fields = wanted.fields | wanted.asked[0]
            attributes: JsonObject = {**self._job.attributes, **fields.get("attributes", {})}
            if (key := fields.pop("key", None)) is not None:
                attributes[_KEY] = key
            if attributes:
                fields["attributes"] = attributes
            requests_of(replace(wanted, fields=fields), self._caller, "line")
        except ApiError as error:
            raise BatchCallRefused(error) from None
        if self._job.tenant is not None:
            fields["tenant"] = self._job.tenant
        return wanted, fields

    def _translated(self, endpoint: Endpoint, body: JsonObject) -> Wanted:
        """Raises ApiError."""
        self._check_model(model_of(without_nulls({"model": body.get("model")})))
        has_output = self._view.contract.output is not None
        if endpoint == "chat":
            wanted = wanted_of_chat(
                body, contract_has_output=has_output, has_tool_parser=self._view.has_tool_parser
            )
        else:
            wanted = wanted_of_completion(body, contract_has_output=has_output)
        if wanted.stream:
            raise unsupported("stream", "answers of a batch are written whole: leave it out")
        if len(wanted.asked) > 1:
            raise invalid("prompt", "each line of a batch is one prompt: give each a line of its own")
        self._check_lane(body)
        return replace(wanted, lane=self._job.lane)

    def _check_lane(self, body: JsonObject) -> None:
        """What asks to come before others is refused: a batch would not do it."""
        lane = self._job.lane
        if body.get("service_tier") in _HURRIED:
            raise unsupported(
                "service_tier", f"the lines of a batch all go through the lane {lane}: send auto or flex"
            )
        if (body.get("priority") or 0) < 0:
            raise unsupported(
                "priority", f"the lines of a batch all go through the lane {lane}: leave it out"
            )

    def _check_model(self, name: str) -> None:
        if name not in self._of_name:
            if len(self._of_name) >= MAX_NAMES:
                self._of_name.clear()
            self._of_name[name] = self._refused_model(name)
        if (refused := self._of_name[name]) is not None:
            raise refused

    def _refused_model(self, name: str) -> ApiError | None:
        if name == self._job.model:
            return None
        try:
            of = resolve(name, self._records).contract
        except ApiError as error:
            return None if self._job.model is not None else error
        is_known = name in self._records.contracts.aliases or of in self._records.known
        if of == self._view.id or (self._job.model is not None and not is_known):
            return None
        return ApiError(
            400,
            f"The model `{shortened(name)}` is {of[0]}@{of[1]}, and this batch runs on {self._view.name}: give the "
            "lines of each model a file of their own.",
            reason="mismatched_model",
            param="model",
        )


def _call(line: JsonObject) -> tuple[Endpoint, JsonObject]:
    """The endpoint that a line calls, and the call's body. Raises BatchLineInvalid."""
    for name in ("custom_id", "method", "url", "body"):
        if line.get(name) in (None, ""):
            raise BatchLineInvalid(
                f"Missing required parameter: '{name}'.", reason="missing_required_parameter", path=f"/{name}"
            )
    if not isinstance(line["custom_id"], str):
        raise _invalid("custom_id", "must be a string")
    if line["method"] != "POST":
        raise _invalid("method", "must be 'POST'")
    url, body = line["url"], line["body"]
    endpoint = _ENDPOINTS.get(url) if isinstance(url, str) else None
    if endpoint is None:
        shown = f"; given: {shortened(url)!r}" if isinstance(url, str) else ""
        raise BatchLineInvalid(
            f"Invalid 'url': must be one of {', '.join(_ENDPOINTS)}{shown}.",
            reason="invalid_url",
            path="/url",
        )
    if not isinstance(body, dict):
        raise _invalid("body", "must be an object")
    return endpoint, cast("JsonObject", body)


def _invalid(name: str, sentence: str) -> BatchLineInvalid:
    return BatchLineInvalid(f"Invalid '{name}': {sentence}.", reason="invalid_value", path=f"/{name}")
