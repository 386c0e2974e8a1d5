"""From a polled record to work: decode it, find its id and its reply address. Pure but for the codec's registry."""

from __future__ import annotations

from headrace.consumers.records import Record, TopicPartition
from headrace.schemas import headers as header
from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import InvalidField, MessageError
from headrace.schemas.messages import Lane, Request
from headrace.workers.work import Headers, Replay, ReplyAddress, Work


def work_of(record: Record, *, source: TopicPartition, epoch: int, lane: Lane, codec: Codec) -> Work:
    """One record as work; what is wrong with it is in `error`.

    Raises RegistryFailed when the writer's schema cannot be asked for just now: not the message's fault.
    """
    request: Request | None = None
    error: MessageError | None = None
    encoding = Encoding.JSON if (record.value or b"").startswith(b"{") else Encoding.SINGLE_OBJECT
    try:
        decoded = codec.decode(Request, record.value)
        request, encoding = decoded.message, decoded.encoding
        request_id: str | None = request.id
    except MessageError as undecodable:
        error = undecodable
        request_id = codec.peek_id(Request, record.value)
    replay = replay_of(record.headers)
    if request is not None and request.deadline is not None and replay != "no":
        # It was the first caller's. Whoever replays it wants it served.
        request = request.model_copy(update={"deadline": None})
    reply_to: ReplyAddress | None = None
    try:
        reply_to = reply_address(record.headers)
    except MessageError as bad_header:
        error = error or bad_header
    return Work(
        source=source,
        offset=record.offset,
        epoch=epoch,
        lane=lane,
        appended_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=record.headers,
        encoding=encoding,
        request=request,
        request_id=request_id,
        error=error,
        reply_to=reply_to,
        replay=replay,
    )


def replay_of(headers: Headers) -> Replay:
    """Whether this is a dead letter's request, sent again."""
    names = {name for name, _ in headers}
    if header.REPLAY not in names:
        return "no"
    return "again" if header.REPLAY_AGAIN in names else "unless_ok"


def reply_address(headers: Headers) -> ReplyAddress | None:
    """Where the caller waits; None without a reply topic. Raises InvalidField that names the header."""
    found = {name: value for name, value in headers if value is not None}
    topic = found.get(header.REPLY_TOPIC)
    if topic is None:
        return None
    correlation_id, partition = found.get(header.CORRELATION_ID), found.get(header.REPLY_PARTITION)
    if correlation_id is None or partition is None:
        missing = header.CORRELATION_ID if correlation_id is None else header.REPLY_PARTITION
        raise InvalidField(f"header {missing} is missing; it goes with {header.REPLY_TOPIC}")
    if not (partition.isascii() and partition.isdigit() and len(partition) < 7):
        raise InvalidField(f"header {header.REPLY_PARTITION} must be a decimal number")
    try:
        return ReplyAddress(topic.decode(), int(partition), correlation_id.decode())
    except UnicodeDecodeError as error:
        raise InvalidField(f"a reply header is not UTF-8: {error}") from None
