"""The client's in-memory twin, for the tests of those who use Headrace: no Kafka, no engine, no network.

    client = InMemoryClient(answer={"genre": "drama", "moods": ["tense"]})
    async with client:
        tags = await tag_film(client, film)          # the code under test takes a Client
    assert client.requests[0].variables == {"title": "Heat"}

It is the real Client on another transport: requests are validated, encoded and decoded as they would be,
replies are put in order, overdue ones are asked for again, statuses become exceptions. For synchronous
code: `SyncClient(InMemoryClient(...))`.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pydantic_core
from pydantic import BaseModel

from headrace.consumers.replies import Delivery
from headrace.producers.client import DEFAULT_MAX_PENDING, Client
from headrace.schemas.codec import Codec
from headrace.schemas.errors import HeadraceError, KafkaFailed, ResultGone
from headrace.schemas.messages import (
    Cancel,
    ErrorDetail,
    FinishReason,
    Lane,
    Location,
    Output,
    Provenance,
    Reply,
    Request,
    Result,
    Status,
    Timings,
    Usage,
)
from headrace.topics.names import ContractNames

# Text; a JSON value, whose JSON is the text; or a whole Result.
AnswerValue = str | Mapping[str, Any] | Sequence[Any] | BaseModel | Result
Answer = AnswerValue | Callable[[Request], AnswerValue | Awaitable[AnswerValue]]

WORDS = re.compile(r"\s*\S+|\s+")  # joined again they are the text


@dataclass(frozen=True, slots=True)
class Fault:
    """What is to go wrong with the next request."""

    kind: Literal["status", "lost_reply", "restart", "silence"]
    status: Status = "failed"
    message: str = ""


class ScriptedWorker:
    """Answers requests as a worker does, by a script instead of an engine. Knows nothing of how they come
    and go.

    Faults are taken in the order in which they were ordered, one for each request; `restart` waits for a
    stream.
    """

    def __init__(self, answer: Answer, names: ContractNames, *, version: str = "1") -> None:
        self.answer = answer
        self.names = names
        self.version = version
        self.faults: deque[Fault] = deque()

    def fault_for(self, request: Request) -> Fault | None:
        """Take the next fault if it concerns this request."""
        if not self.faults or (self.faults[0].kind == "restart" and not request.stream):
            return None
        return self.faults.popleft()

    async def result(self, request: Request, source: Location, fault: Fault | None = None) -> Result:
        """The result of a request that lies at `source`."""
        if fault is not None and fault.kind == "status" and fault.status != "ok":
            return self._result(request, source, status=fault.status, message=fault.message)
        answer = self.answer(request) if callable(self.answer) else self.answer
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, Result):
            return answer
        if isinstance(answer, str):
            return self._result(request, source, text=answer)
        value = pydantic_core.to_jsonable_python(answer)
        return self._result(request, source, text=pydantic_core.to_json(value).decode(), value=value)

    def deltas(self, request: Request, result: Result, fault: Fault | None = None) -> list[Reply]:
        """What is streamed of a result before its final reply."""
        if not request.stream or result.status != "ok" or not result.outputs:
            return []
        words: list[str] = WORDS.findall(result.outputs[0].text)
        if fault is None or fault.kind != "restart":
            return [Reply(id=request.id, seq=seq, kind="delta", delta=word) for seq, word in enumerate(words)]
        begun = [Reply(id=request.id, seq=0, kind="delta", delta=words[0])]
        return begun + [
            Reply(id=request.id, attempt=2, seq=seq, kind="delta", delta=word)
            for seq, word in enumerate(words)
        ]

    def final(self, result: Result, seq: int) -> Reply:
        """The last reply."""
        return Reply(id=result.id, seq=seq, kind="final", result=result)

    def duplicate(self, request: Request, location: Location) -> Reply:
        """The reply to a request whose result lies at `location` already."""
        return Reply(id=request.id, seq=0, kind="duplicate", location=location)

    def _result(
        self,
        request: Request,
        source: Location,
        *,
        status: Status = "ok",
        message: str = "",
        text: str = "",
        value: Any = None,
    ) -> Result:
        finish: FinishReason = "length" if status == "truncated" else "stop"
        outputs = [Output(text=text, finish_reason=finish, value=value)]
        return Result(
            id=request.id,
            status=status,
            outputs=outputs if status in ("ok", "truncated", "invalid_output") else [],
            usage=Usage(prompt_tokens=1, completion_tokens=len(WORDS.findall(text))),
            timings=Timings(),
            error=None
            if status == "ok"
            else ErrorDetail(code=status, message=message or f"scripted: {status}"),
            provenance=Provenance(
                model=self.names.model,
                version=self.version,
                contract=self.names.contract,
                engine="scripted",
                engine_version="1",
                slot="in-memory",
                source_topic=source.topic,
                source_partition=source.partition,
                source_offset=source.offset,
            ),
            attributes=request.attributes,
        )


class InMemoryTransport:
    """Takes requests to a ScriptedWorker and its replies back, each through the codec."""

    def __init__(self, worker: ScriptedWorker) -> None:
        self.worker = worker
        self.delay_s = 0.0
        self.requests: list[Request] = []
        self.generated: list[Request] = []
        self.lanes: list[Lane] = []
        self.cancels: list[Cancel] = []
        self._codec = Codec()
        self._seen: set[str] = set()  # correlation ids: a reminder is not another request
        self._offsets: dict[str, int] = {}  # next offset of each topic
        self._results: list[Result | None] = []  # None: retention has removed it
        self._taken: dict[str, Location | None] = {}  # request id: its result; None while it is being made
        self._addresses: dict[str, set[str]] = {}  # request id: who waits for it
        self._tasks: set[asyncio.Task[None]] = set()
        self._deliver: Callable[[list[Delivery]], None] = lambda _: None
        self.died: Callable[[HeadraceError], None] = lambda _: None

    async def open(
        self, deliver: Callable[[list[Delivery]], None], died: Callable[[HeadraceError], None]
    ) -> None:
        self._deliver, self.died = deliver, died

    def correlation_id(self, number: int) -> str:
        return f"in-memory:{number}"

    async def send(self, request: Request, lane: Lane, correlation_id: str | None) -> Location:
        received = self._codec.decode(Request, self._codec.encode(request)).message
        if correlation_id is None or correlation_id not in self._seen:
            self._seen.add(correlation_id or "")
            self.requests.append(received)
            self.lanes.append(lane)
        topic = self.worker.names.requests(lane)
        location = Location(topic=topic, partition=0, offset=self._next_offset(topic))
        self._take(received, correlation_id, location)
        return location

    async def send_cancel(self, cancel: Cancel) -> None:
        self.cancels.append(self._codec.decode(Cancel, self._codec.encode(cancel)).message)

    async def result_at(self, location: Location) -> Result:
        if location.topic != self.worker.names.results or location.offset >= len(self._results):
            raise ResultGone(f"no result lies at {location}")
        result = self._results[location.offset]
        if result is None:
            raise ResultGone(f"no result lies at {location} any more")
        return result

    def forget_results(self) -> None:
        """Have retention remove all results that there are."""
        self._results = [None] * len(self._results)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _take(self, request: Request, correlation_id: str | None, source: Location) -> None:
        if request.id in self._taken:
            result = self._taken[request.id]
            if result is not None and correlation_id is not None:
                self._reply(correlation_id, self.worker.duplicate(request, result))
            elif correlation_id is not None:
                self._addresses[request.id].add(correlation_id)
            return
        self.generated.append(request)
        self._taken[request.id] = None
        self._addresses[request.id] = set() if correlation_id is None else {correlation_id}
        task = asyncio.ensure_future(self._answer(request, source, correlation_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, request: Request, source: Location, asked_by: str | None) -> None:
        fault = self.worker.fault_for(request)
        if fault is not None and fault.kind == "silence":
            return
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        try:
            result = await self.worker.result(request, source, fault)
        except Exception as error:  # noqa: BLE001  of the caller's script: its test must not hang on it
            failure = Fault("status", "failed", f"the answer raised {type(error).__name__}: {error}")
            result = await self.worker.result(request, source, failure)
        deltas = self.worker.deltas(request, result, fault)
        location = Location(topic=self.worker.names.results, partition=0, offset=len(self._results))
        self._results.append(self._codec.decode(Result, self._codec.encode(result)).message)
        self._taken[request.id] = location
        for address in self._addresses.pop(request.id):
            if address == asked_by:  # who asks again meanwhile is told of the end alone
                for delta in deltas:
                    self._reply(address, delta)
            if fault is None or fault.kind != "lost_reply":
                self._reply(address, self.worker.final(result, len(deltas)))

    def _reply(self, correlation_id: str, reply: Reply) -> None:
        self._deliver([(correlation_id, self._codec.decode(Reply, self._codec.encode(reply)).message)])

    def _next_offset(self, topic: str) -> int:
        offset = self._offsets.get(topic, 0)
        self._offsets[topic] = offset + 1
        return offset


class InMemoryClient(Client):
    """A Client that is answered by `answer`: text, a JSON value, a whole Result, or a function of the
    Request (also `async`) that returns one of these.

    `requests` are those that were sent, in order, `lanes` their lanes and `cancels` the cancels. `delay_s`
    holds every answer back.
    """

    def __init__(
        self,
        answer: Answer = "",
        *,
        model: str = "in-memory",
        contract: int = 1,
        version: str = "1",
        delay_s: float = 0.0,
        max_pending: int = DEFAULT_MAX_PENDING,
    ) -> None:
        names = ContractNames("headrace", model, contract)
        self._memory = InMemoryTransport(ScriptedWorker(answer, names, version=version))
        self._memory.delay_s = delay_s
        super().__init__(self._memory, max_pending=max_pending)

    @property
    def requests(self) -> list[Request]:
        """The requests that were sent, reminders left out."""
        return self._memory.requests

    @property
    def generated(self) -> list[Request]:
        """Those of `requests` that led to a generation: the first with each id."""
        return self._memory.generated

    @property
    def lanes(self) -> list[Lane]:
        """The lane of each of `requests`."""
        return self._memory.lanes

    @property
    def cancels(self) -> list[Cancel]:
        """The cancels that were sent."""
        return self._memory.cancels

    @property
    def delay_s(self) -> float:
        """Seconds that every answer takes."""
        return self._memory.delay_s

    @delay_s.setter
    def delay_s(self, seconds: float) -> None:
        self._memory.delay_s = seconds

    def answer_with(self, answer: Answer) -> None:
        """Answer with this from now on."""
        self._memory.worker.answer = answer

    def fail_next(self, status: Status = "failed", message: str = "", *, times: int = 1) -> None:
        """Answer the next request (the next `times`) with this status."""
        self._order(Fault("status", status, message), times)

    def lose_next_reply(self, *, times: int = 1) -> None:
        """Answer the next request and lose its final reply, as in a crash: asking again finds it."""
        self._order(Fault("lost_reply"), times)

    def restart_next_stream(self, *, times: int = 1) -> None:
        """Lose the worker after the first word of the next stream."""
        self._order(Fault("restart"), times)

    def ignore_next(self, *, times: int = 1) -> None:
        """Never answer the next request."""
        self._order(Fault("silence"), times)

    def forget_results(self) -> None:
        """Have retention remove all results that there are: asking again under their ids finds them gone."""
        self._memory.forget_results()

    def lose_connection(self, cause: HeadraceError | None = None) -> None:
        """Have the reply reader die."""
        self._memory.died(cause or KafkaFailed("the connection was lost"))

    def _order(self, fault: Fault, times: int) -> None:
        self._memory.worker.faults.extend(replace(fault) for _ in range(times))
