"""From what became of a request to the records that say so. Pure but for the codec's registry look-ups."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from headrace.producers.kafka import OutgoingRecord
from headrace.schemas import headers as header
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import (
    HeadraceError,
    MessageError,
    RegistryFailed,
    ResultTooLarge,
    TopicNotAllowed,
)
from headrace.schemas.messages import (
    DeadLetter,
    ErrorDetail,
    Header,
    Location,
    Message,
    Output,
    Provenance,
    Result,
    Status,
    Timings,
    Usage,
)
from headrace.schemas.package import Package
from headrace.topics.names import ContractNames, replies_topic
from headrace.workers.engine import EngineIdentity
from headrace.workers.work import Completion, Work

log = logging.getLogger(__name__)

# An expired or cancelled request was given up on purpose: there is nothing to look into.
NO_DEAD_LETTER: frozenset[Status] = frozenset({"ok", "expired", "cancelled"})

# Headers of a request that its result has too.
_COPIED = frozenset({header.CORRELATION_ID, header.TRACEPARENT, header.REPLAY, header.SUPERSEDES})

MAX_ERROR_MESSAGE = 2_000  # characters: a library's message may quote all of its input


@dataclass(frozen=True, slots=True)
class Served:
    """What became of one request. Times in ms from the record's append time."""

    status: Status
    outputs: list[Output] = field(default_factory=list[Output])
    usage: Usage = field(default_factory=Usage)
    error: ErrorDetail | None = None
    attempt: int = 1
    queued_ms: int = 0
    first_token_ms: int | None = None
    output_schema_digest: str | None = None
    tier: str | None = None  # how much of the output schema decoding enforced
    attributes: dict[str, str] | None = None  # of the result; None: the request's
    next_seq: int = 0  # of the replies: one more than the last delta's


def detail(error: HeadraceError) -> ErrorDetail:
    """An error of ours as it stands in a result."""
    return ErrorDetail(code=error.code, message=error.message[:MAX_ERROR_MESSAGE], path=error.path)


def _attributes(work: Work, served: Served) -> dict[str, str]:
    if served.attributes is not None:
        return served.attributes
    return work.request.attributes if work.request else {}


def milliseconds_since(appended_ms: int) -> int:
    """From a record's append time until now; clocks differ between machines, hence never below 0."""
    return max(0, int(time.time() * 1000) - appended_ms)


class Answers:
    """Makes the completion of a request: its result, its dead letter, and who is to be told."""

    def __init__(
        self,
        *,
        package: Package,
        names: ContractNames,
        slot: str,
        codec: Codec,
        check_size: Callable[[OutgoingRecord], None],
        allowed_result_topics: Iterable[str] = (),
    ) -> None:
        self._package = package
        self._names = names
        self._slot = slot
        self._codec = codec
        self._check_size = check_size
        self._allowed = tuple(allowed_result_topics)
        self._identity = EngineIdentity("unknown", "unknown", None, None, 0)

    def engine_is(self, identity: EngineIdentity) -> None:
        """Name the engine in every result from now on."""
        self._identity = identity

    def check_result_topic(self, work: Work) -> None:
        """Raises TopicNotAllowed when the request names a result topic that is not on the allow-list."""
        wanted = work.request.result_topic if work.request else None
        if wanted is not None and wanted != self._names.results and not self._is_allowed(wanted):
            raise TopicNotAllowed(f"result topic {wanted!r} is not allowed", path="/result_topic")

    def check_reply_topic(self, work: Work) -> None:
        """Raises TopicNotAllowed when the reply topic is not on the allow-list."""
        reply_to = work.reply_to
        if (
            reply_to is not None
            and reply_to.topic != replies_topic(self._names.prefix)
            and not self._is_allowed(reply_to.topic)
        ):
            raise TopicNotAllowed(f"{header.REPLY_TOPIC} {reply_to.topic!r} is not allowed")

    def _is_allowed(self, topic: str) -> bool:
        return any(
            topic == allowed or (allowed.endswith("*") and topic.startswith(allowed[:-1]))
            for allowed in self._allowed
        )

    def rejection(self, work: Work, error: MessageError) -> Completion:
        """The completion of a request that cannot be served as it is."""
        return self.completion(work, Served("rejected", error=detail(error)))

    def duplicate(self, work: Work) -> Completion:
        """The completion of a request whose id was already asked for: its offset is done, nothing is published."""
        return self.passed_over(work)

    def passed_over(self, work: Work) -> Completion:
        """The completion of a request that is another's to answer: its offset is done, nothing is published."""
        return Completion(
            source=work.source,
            offset=work.offset,
            epoch=work.epoch,
            lane=work.lane,
            size=work.size,
            request_id=work.request_id,
            records=(),
            result=None,
            encoding=work.encoding,
        )

    def completion(self, work: Work, served: Served) -> Completion:
        """The completion of a request, whatever became of it.

        Where result or dead letter are too large for a record, the result becomes `failed: result_too_large` and the
        dead letter goes without the request's bytes and says where they lie. What cannot be encoded for another
        reason becomes `failed: internal_error`: one request must not stop the worker, nor each that comes after it.
        Raises RegistryFailed when the registry does not answer just now.
        """
        try:
            return self._completion(work, served)
        except RegistryFailed:
            raise
        except Exception as error:
            log.exception("the result of request %s cannot be made", work.request_id)
            message = f"its result could not be encoded: {type(error).__name__}"
            return self._bare(work, ErrorDetail(code="internal_error", message=message), served.next_seq)

    def _completion(self, work: Work, served: Served) -> Completion:
        result = self.result(work, served)
        records: list[OutgoingRecord] = []
        if work.request_id is not None:
            result, record = self._fitting_result(work, served, result)
            records.append(record)
        if result.status not in NO_DEAD_LETTER:
            records.append(self._dead_record(work, result, bare=False))
        return self._completed(work, served, result, records)

    def _completed(
        self,
        work: Work,
        served: Served,
        result: Result,
        records: list[OutgoingRecord],
        *,
        last_resort: bool = False,
    ) -> Completion:
        return Completion(
            source=work.source,
            offset=work.offset,
            epoch=work.epoch,
            lane=work.lane,
            size=work.size,
            request_id=work.request_id,
            records=tuple(records),
            result=result,
            encoding=work.encoding,
            reply_to=(work.reply_to,) if work.reply_to else (),
            next_seq=served.next_seq,
            urgent=work.lane == "interactive",
            work=work,
            last_resort=last_resort,
        )

    def last_resort(self, completion: Completion, error: HeadraceError) -> Completion:
        """The completion of a request whose records the broker refused, in a form that it cannot refuse for size.

        A commit that cannot succeed would hold up everything else for ever.
        """
        assert completion.work is not None, "whatever has records has its work"
        instead = self._bare(completion.work, detail(error), completion.next_seq)
        return replace(instead, reply_to=completion.reply_to)

    def _bare(self, work: Work, error: ErrorDetail, next_seq: int) -> Completion:
        """`failed`, with nothing of what the request brought but its id, and to the contract's own topics."""
        request = work.request
        own = request.model_copy(update={"result_topic": None, "attributes": {}}) if request else None
        work = replace(work, request=own)
        served = Served("failed", error=error, next_seq=next_seq)
        result = self.result(work, served)
        records = [self._result_record(work, result)] if work.request_id is not None else []
        records.append(self._dead_record(work, result, bare=True))
        return self._completed(work, served, result, records, last_resort=True)

    def _fitting_result(self, work: Work, served: Served, result: Result) -> tuple[Result, OutgoingRecord]:
        record = self._result_record(work, result)
        try:
            self._check_size(record)
        except ResultTooLarge as error:
            failed = replace(served, status="failed", outputs=[], error=detail(error))
            result = self.result(work, failed).model_copy(update={"attributes": {}})
            record = self._result_record(work, result)
        return result, record

    def result(self, work: Work, served: Served) -> Result:
        """The result that says what became of a request."""
        # A message without a readable id has no result; its caller, if it has one, is told by correlation id.
        fallback = work.reply_to.correlation_id if work.reply_to else ""
        return Result(
            id=fallback if work.request_id is None else work.request_id,
            status=served.status,
            outputs=served.outputs,
            usage=served.usage,
            timings=Timings(
                queued_ms=served.queued_ms,
                first_token_ms=served.first_token_ms,
                total_ms=milliseconds_since(work.appended_ms),
            ),
            error=served.error,
            provenance=self._provenance(work, served),
            attributes=_attributes(work, served),
        )

    def _provenance(self, work: Work, served: Served) -> Provenance:
        return Provenance(
            model=self._package.model,
            version=self._package.version,
            contract=self._package.contract,
            engine=self._identity.engine,
            engine_version=self._identity.engine_version,
            weights_digest=self._identity.weights_digest,
            output_schema_digest=served.output_schema_digest,
            tier=served.tier,
            backend=self._identity.backend if served.output_schema_digest else None,
            slot=self._slot,
            source_topic=work.source.topic,
            source_partition=work.source.partition,
            source_offset=work.offset,
            attempt=served.attempt,
        )

    def _result_record(self, work: Work, result: Result) -> OutgoingRecord:
        request = work.request
        wanted = request.result_topic if request else None
        # A result topic that is not allowed is the reason for the rejection: that goes to the contract's own.
        topic = wanted if wanted and self._is_allowed(wanted) else self._names.results
        headers = [
            (header.STATUS, result.status.encode()),
            (header.MODEL_VERSION, self._package.version.encode()),
            (header.REQUEST_ID, result.id.encode()),
        ]
        if request and request.job:
            headers.append((header.JOB, request.job.encode()))
        headers += [(name, value) for name, value in work.headers if name in _COPIED and value is not None]
        own = request.key.encode() if request and request.key else None
        key = own or work.key or result.id.encode()
        # Results lie in the partition of the same number as their requests: a key stays in its place, and a window of
        # recent ids can be rebuilt from one partition.
        partition = work.source.partition if topic == self._names.results else None
        return OutgoingRecord(topic, key, self._encode(result, work, topic), tuple(headers), partition)

    def _dead_record(self, work: Work, result: Result, *, bare: bool) -> OutgoingRecord:
        assert result.error is not None, "whatever is not ok says why"
        letter = DeadLetter(
            id=work.request_id,
            code=result.error.code,
            message=result.error.message,
            path=result.error.path,
            source=Location(topic=work.source.topic, partition=work.source.partition, offset=work.offset),
            key=work.key,
            value=work.value,
            headers=[Header(key=name, value=value) for name, value in work.headers],
            attempt=result.provenance.attempt,
            time=int(time.time() * 1000),
        )
        if not bare:
            record = self._dead_letter_record(work, letter)
            try:
                self._check_size(record)
            except ResultTooLarge:
                bare = True
            else:
                return record
        where = f"{work.source.topic}-{work.source.partition} at offset {work.offset}"
        note = f"{letter.message} (its bytes are not kept here: they lie in {where})"
        emptied = letter.model_copy(update={"value": None, "key": None, "headers": [], "message": note})
        return self._dead_letter_record(work, emptied)

    def _dead_letter_record(self, work: Work, letter: DeadLetter) -> OutgoingRecord:
        key = work.key if work.request_id is None else work.request_id.encode()
        headers = (
            (header.ERROR_CODE, letter.code.encode()),
            (header.MODEL_VERSION, self._package.version.encode()),
        )
        if work.request_id is not None:
            headers += ((header.REQUEST_ID, work.request_id.encode()),)
        return OutgoingRecord(self._names.dead, key, self._encode(letter, work, self._names.dead), headers)

    def _encode(self, message: Message, work: Work, topic: str) -> bytes:
        # A JSON request gets a JSON result; everything else what is configured.
        encoding = Encoding.JSON if work.encoding is Encoding.JSON else None
        return self._codec.encode(message, encoding, topic=topic)
