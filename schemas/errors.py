"""Every error that Headrace raises: one base class, a `code` for each kind.

The docstring of a class is what it means. `code` is what goes over the wire and into logs and metrics, and never
changes its meaning; `exit_code` is what a command that ends with it returns:

    1 it failed          2 the caller's mistake       3 something needed is not here (a real Kafka, Java, vLLM)
    4 the engine died    5 another process has this slot
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.schemas.messages import Result


class HeadraceError(Exception):
    """Something went wrong in Headrace.

    `path` is a JSON pointer into the message, schema or file at fault (`/sampling/max_tokens`);
    `offset` a byte offset into an encoded message.
    """

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, path: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.path = path
        self.offset = offset

    def __str__(self) -> str:
        where = [self.path] if self.path else []
        if self.offset is not None:
            where.append(f"byte {self.offset}")
        return f"{self.message} (at {', '.join(where)})" if where else self.message


# --- a message at fault: it ends as one `rejected` result and one dead letter ---------------------------------


class MessageError(HeadraceError):
    """A message that cannot be served as it is; asking again with the same bytes cannot help."""

    code = "bad_message"
    exit_code = 2


class Undecodable(MessageError):
    """The bytes are not a message of ours in any of the encodings."""

    code = "undecodable"


class UnknownWriterSchema(MessageError):
    """The message names a writer's schema (registry id or fingerprint) that cannot be had."""

    code = "unknown_writer_schema"


class UnknownField(MessageError):
    """A field that Headrace does not know: it would have been silently ignored."""

    code = "unknown_field"


class InvalidField(MessageError):
    """A field that is missing, of the wrong type, out of range, or at odds with another."""

    code = "invalid_field"


class UnsupportedField(MessageError):
    """A known field that this model's package cannot honour."""

    code = "unsupported_field"


class MissingVariable(MessageError):
    """The package's template needs a variable that the request does not give."""

    code = "missing_variable"


class TemplateFailed(MessageError):
    """The package's template or the model's chat template raised an error for this request."""

    code = "template_failed"


class PromptTooLong(MessageError):
    """The prompt has more tokens than the model can hold."""

    code = "prompt_too_long"


class InvalidSchema(MessageError):
    """An output schema that is no JSON Schema, or that cannot be held."""

    code = "invalid_schema"


class SchemaTooComplex(InvalidSchema):
    """An output schema beyond the bounds on size, depth, enums, branches or quantifiers."""

    code = "schema_too_complex"


class TopicNotAllowed(MessageError):
    """A request names a result or reply topic that is not on the allow-list."""

    code = "topic_not_allowed"


class ResultTooLarge(MessageError):
    """The result does not fit into a record of its topic."""

    code = "result_too_large"
    index: int | None = None  # which record of a batch


# --- an output at fault -----------------------------------------------------------------------------------------


class OutputError(HeadraceError):
    """What the engine generated is not what was asked for."""

    code = "invalid_output"


class OutputNotJson(OutputError):
    """The output is not a JSON text that every reader takes the same way."""

    code = "not_json"


class OutputUnparsable(OutputNotJson):
    """The text is no JSON by its syntax: it ends too early, or there is something that no JSON text has."""


class OutputViolatesSchema(OutputError):
    """The output is JSON, and the output schema does not accept it."""

    code = "schema_violated"


# --- a package's hook at fault --------------------------------------------------------------------------------------


class HookFailed(HeadraceError):
    """A package's hook raised, took too long, or returned what it may not: this request fails, no other."""

    code = "hook_failed"


# --- the engine ---------------------------------------------------------------------------------------------------


class EngineError(HeadraceError):
    """The engine could not do what it was asked to."""

    code = "engine_error"


class EngineRejected(EngineError, MessageError):
    """The engine refused this request before it began."""

    code = "engine_rejected"


class ConstraintFailed(EngineError):
    """The grammar did not compile in the engine, or died while it generated."""

    code = "constraint_error"


class EngineDead(EngineError):
    """The engine has died and answers nothing any more."""

    code = "engine_dead"
    exit_code = 4


class PoisonRequest(EngineError):
    """The engine died each time it was given this request, in the end with nothing else in flight."""

    code = "poison_request"


class EngineUnavailable(EngineError):
    """The engine is not installed here, or did not start."""

    code = "engine_unavailable"
    exit_code = 3


# --- the operator's side --------------------------------------------------------------------------------------------


class UsageError(HeadraceError):
    """An argument, setting or file is wrong; the message says what to do."""

    code = "usage"
    exit_code = 2


class SettingsError(UsageError):
    """An environment variable or option does not have a value that can be used."""

    code = "bad_setting"


class PackageError(UsageError):
    """A model package is wrong: names the file, the line where known, and the key."""

    code = "bad_package"

    def __init__(
        self, message: str, *, file: Path | None = None, line: int | None = None, key: str | None = None
    ) -> None:
        place = "" if file is None else f"{file}:{line}: " if line is not None else f"{file}: "
        super().__init__(f"{place}{f'{key}: ' if key else ''}{message}")
        self.file = file
        self.line = line
        self.key = key


class TopicsError(HeadraceError):
    """The cluster's topics cannot be brought in line with the layout."""

    code = "topics"


class BrokerNotFound(HeadraceError):
    """No broker was found, or not one that can do what is needed."""

    code = "broker_not_found"
    exit_code = 3


class BrokerFailed(HeadraceError):
    """A broker did not start, or ended by itself."""

    code = "broker_failed"


class BrokerInstallFailed(HeadraceError):
    """A Kafka release could not be fetched, is not what was published, or could not be unpacked."""

    code = "broker_install_failed"


# --- Kafka ------------------------------------------------------------------------------------------------------


class KafkaFailed(HeadraceError):
    """A Kafka client call failed; the cause is the client's own error."""

    code = "kafka"


class KafkaUnavailable(KafkaFailed):
    """No broker answered in time."""

    code = "kafka_unavailable"
    exit_code = 3


class UnreadableOffsets(HeadraceError):
    """A committed offset's metadata cannot be read: the partition is parked, no record skipped or doubled."""

    code = "unreadable_offsets"


class OffsetsTooLong(HeadraceError):
    """A partition's done set does not fit into its commit: more was polled than there was room for."""

    code = "offsets_too_long"


class RegistryFailed(HeadraceError):
    """The schema registry did not answer, or refused."""

    code = "registry"


class SchemaIncompatible(RegistryFailed):
    """The registry refused a schema: readers of the subject's other ones could not read what is written with it."""

    code = "schema_incompatible"


class TopicMissing(KafkaFailed):
    """A topic that does not exist, or that this client may not see."""

    code = "topic_missing"
    index: int | None = None  # which record of a batch


class ResultGone(KafkaFailed):
    """A result that was answered before does not lie any more where it lay: retention has removed it."""

    code = "result_gone"
    exit_code = 1


class StaleGeneration(KafkaFailed):
    """The group has moved on: this member may no longer commit for what it handed in."""

    code = "stale_generation"


class SlotTaken(KafkaFailed):
    """Another process runs with this slot; the older of the two stops."""

    code = "slot_taken"
    exit_code = 5


class TransactionHung(KafkaFailed):
    """A transaction did not end within its bound; the process must end, so that its successor can settle it."""

    code = "transaction_hung"


class SideTaskDied(HeadraceError):
    """One of the worker's threads or tasks ended when it should not have."""

    code = "side_task_died"


# --- the client's side: what became of a request ------------------------------------------------------------------


class RequestFailed(HeadraceError):
    """A request was answered with something other than `ok`; `result` is the whole answer."""

    code = "request_failed"

    def __init__(self, result: Result) -> None:
        error = result.error
        super().__init__(
            f"{result.id}: {result.status}" + (f": {error.message}" if error else ""),
            path=error.path if error else None,
        )
        self.result = result


class Rejected(RequestFailed):
    """The request was refused: it cannot be served as it is."""

    code = "rejected"


class InvalidOutput(RequestFailed):
    """The model's output did not hold to the output schema, however often it was tried."""

    code = "invalid_output"


class OutputDoesNotFit(InvalidOutput):
    """The result is `ok`, and its output does not fit the type that the caller wants it in."""

    code = "output_does_not_fit"

    def __init__(self, result: Result, reason: str, *, path: str | None = None) -> None:
        super().__init__(result)
        self.message = f"{result.id}: the output does not fit the type asked for: {reason}"
        self.path = path


class Truncated(RequestFailed):
    """The output ran into `max_tokens` before it was whole."""

    code = "truncated"


class Failed(RequestFailed):
    """The request was taken and could not be carried out."""

    code = "failed"


class Expired(RequestFailed):
    """The deadline passed before the answer was there."""

    code = "expired"


class Cancelled(RequestFailed):
    """The request was cancelled."""

    code = "cancelled"


class NoReply(HeadraceError):
    """No reply came in time; the request may still be answered in `results`."""

    code = "no_reply"


class ClientClosed(NoReply):
    """The client was closed while the request waited for its reply, or before it was sent."""

    code = "client_closed"


class RequestIdReused(HeadraceError):
    """A request of this id was answered before, and it asked for something else."""

    code = "request_id_reused"


class StreamRestarted(HeadraceError):
    """The stream's worker was lost after its first token; another attempt has begun and its text will differ."""

    code = "stream_restarted"
