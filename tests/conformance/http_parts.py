"""What the tests of the HTTP endpoint are made of: instances of it, clients, and what went through Kafka meanwhile."""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import httpx
import openai
from kafka import KafkaAdminClient
from kafka.admin import NewTopic
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ParsedChatCompletion
from packages import TAGS_SCHEMA, write_package
from pydantic import BaseModel, ConfigDict, Field
from waiting import wait_until

from headrace.consumers.partitions import partitions_of
from headrace.consumers.tail_reader import TailReader
from headrace.ops.http_process import EndpointProcess
from headrace.ops.ports import HOST
from headrace.producers.http.caller import UNLIMITED, Limits
from headrace.producers.http.keys import create_key
from headrace.producers.kafka import OutgoingRecord, PlainProducer
from headrace.schemas.codec import Codec
from headrace.schemas.headers import CORRELATION_ID, REPLY_PARTITION
from headrace.schemas.messages import Cancel, Reply, Request, Result
from headrace.schemas.settings import Settings
from headrace.topics.names import ContractNames, control_topic, replies_topic

if TYPE_CHECKING:
    from openai._legacy_response import LegacyAPIResponse

T = TypeVar("T")

FREE, TAGGED = "free", "tagged"  # models: one without an output schema, one whose contract has one
TOOLED = "tooled"  # one whose package has a tool parser
BADLY = "badly"  # in a text that makes it call a tool: with arguments that the tool does not take
PARTITIONS = 2
READY_S = 60.0  # that an instance, or a worker, has to start in
SOON_S = 15.0  # what has been begun is to be seen by then
IN_FLIGHT = 4  # requests that a worker hands to its engine at a time

# The second instance's keys, each with a tenant of its name.
KEYS = {
    "films": UNLIMITED,
    "hasty": Limits(requests_per_minute=1),
    "greedy": Limits(max_concurrent=1),
}

Message = Request | Result | Cancel


class Mood(BaseModel):
    """What a film feels like. Its strings are bounded: a model of random weights hardly ever ends one."""

    model_config = ConfigDict(extra="forbid")

    mood: Literal["bright", "dark", "calm"]
    score: int = Field(ge=1, le=9)
    tags: list[Literal["river", "mill", "stone"]] = Field(min_length=1, max_length=3)


class Weather(BaseModel):
    """Look up the weather of a town."""

    model_config = ConfigDict(extra="forbid")

    town: Literal["Kigali", "Brno"]
    days: int = Field(ge=1, le=7)


class Booking(BaseModel):
    """Book a room."""

    model_config = ConfigDict(extra="forbid")

    nights: int = Field(ge=1, le=9)


# --- what went through Kafka ----------------------------------------------------------------------------------------


class Seen:
    """Reads the topics of all contracts: requests, results and cancels, as anybody may."""

    def __init__(self, settings: Settings) -> None:
        names = [ContractNames(settings.prefix, model, 1) for model in (FREE, TAGGED, TOOLED)]
        self._kinds: dict[str, type[Message]] = {}
        for each in names:
            self._kinds |= dict.fromkeys(each.request_topics, Request)
            self._kinds |= {each.results: Result, each.cancels: Cancel}
        found = partitions_of(settings, list(self._kinds))
        self._reader = TailReader(settings, [tp for each in found.values() for tp in each], "beginning")
        self.requests: list[tuple[str, bytes | None, Request]] = []  # (lane, key, request)
        self.headers: dict[str, dict[str, bytes | None]] = {}  # by the request's id
        self.results: list[Result] = []
        self.cancels: dict[str, Cancel] = {}

    def _read(self) -> None:
        codec = Codec()
        for record in self._reader.poll(0.05):
            match codec.decode(self._kinds[record.topic], record.value).message:
                case Request() as request:
                    self.requests.append((record.topic.rpartition(".")[2], record.key, request))
                    self.headers[request.id] = dict(record.headers)
                case Result() as result:
                    self.results.append(result)
                case cancel:
                    self.cancels[cancel.id or ""] = cancel

    def wait_for(self, found: Callable[[], T], what: str) -> T:
        """Read until `found` finds something."""

        def look() -> T:
            self._read()
            return found()

        return wait_until(look, SOON_S, what)

    def request(self, request_id: str) -> tuple[str, bytes | None, Request]:
        """(lane, key, request) of the first with this id."""
        return self.wait_for(
            lambda: [each for each in self.requests if each[2].id == request_id], f"request {request_id}"
        )[0]

    def of_user(self, user: str, count: int) -> list[str]:
        """The ids of the requests that have this `user`, once there are so many."""

        def there() -> list[str]:
            found = [each.id for _, _, each in self.requests if (each.attributes or {}).get("user") == user]
            return found if len(found) >= count else []

        return self.wait_for(there, f"{count} requests of {user}")

    def result(self, request_id: str) -> Result:
        """The result of a request."""
        return self.wait_for(
            lambda: [each for each in self.results if each.id == request_id], f"the result of {request_id}"
        )[0]

    def cancel(self, request_id: str) -> Cancel:
        """The cancel of a request."""
        self.wait_for(lambda: request_id in self.cancels, f"the cancel of {request_id}")
        return self.cancels[request_id]

    def close(self) -> None:
        self._reader.close()


# --- an instance ----------------------------------------------------------------------------------------------------


class Instance(EndpointProcess):
    """One `headrace serve`."""

    @property
    def url(self) -> str:
        """What a client's `base_url` is."""
        assert self.address is not None, "wait until it is ready"
        return f"{self.address}/v1"

    @property
    def port(self) -> int:
        return int(self.url.split(":")[2].split("/")[0])

    @property
    def listens(self) -> bool:
        """Whether it takes a connection."""
        try:
            socket.create_connection((HOST, self.port), timeout=5).close()
        except OSError:
            return False
        return True

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all that have these labels; 0 if there is none."""
        with httpx.Client(timeout=10) as client:
            page = client.get(f"{self.address}/metrics").text
        total = 0.0
        for given, value in re.findall(rf"^{name}(?:\{{(.*)\}})? (\S+)$", page, re.MULTILINE):
            if dict(re.findall(r'(\w+)="([^"]*)"', given)).items() >= labels.items():
                total += float(value)
        return total

    def calls(self, **labels: str) -> float:
        """How many calls have ended here."""
        return self.metric("headrace_http_calls_total", **labels)


# --- the stage ------------------------------------------------------------------------------------------------------


class Lasting(Protocol):
    """Makes the fields of a call whose answer takes about so many seconds, and never less than half of it."""

    def __call__(self, seconds: float, /) -> Any: ...


@dataclass
class Engine:
    """What generates behind the endpoint."""

    running: Callable[[], int]  # how many requests are in it now
    generations: Callable[[], int]  # how many it has begun
    lasting: Lasting
    context: int  # tokens
    simulated: bool


@dataclass
class Stage:
    """The models that are served, and an endpoint that asks nobody for a key."""

    settings: Settings
    engine: Engine
    place: Path
    endpoint: Instance
    seen: Seen
    producer: PlainProducer
    client: openai.OpenAI
    keys: dict[str, str]
    keys_file: Path
    open: ExitStack = field(default_factory=ExitStack)
    _second: Instance | None = None
    _started: int = 1

    def second(self, *, anew: bool = False) -> Instance:
        """Another instance, which asks for keys: the one that runs, or else, or `anew`, a new one, on the same port."""
        port = 0
        if self._second is not None:
            if self._second.process.poll() is None:
                if not anew:
                    return self._second
                self._second.process.kill()
                self._second.process.wait(SOON_S)
            port = self._second.port
        self._started += 1
        log = self.place / f"endpoint-{self._started}.log"
        options = ("--keys", str(self.keys_file), "--trust-tenant-header")
        self._second = self.open.enter_context(Instance(self.settings, log=log, port=port, options=options))
        self._second.wait_ready(READY_S)
        return self._second

    def caller(self, name: str, **options: Any) -> openai.OpenAI:
        """A client of the second instance with one of the keys, to be closed."""
        return client_of(self.second(), self.keys[name], **options)

    def reply_again(self, request_id: str) -> None:
        """Send the last reply to a request once more, to whoever asked."""
        result, headers = self.seen.result(request_id), self.seen.headers[request_id]
        reply = Reply(id=request_id, seq=0, kind="final", result=result)
        correlation_id = headers[CORRELATION_ID] or b""
        record = OutgoingRecord(
            replies_topic(self.settings.prefix),
            correlation_id,
            Codec().encode(reply),
            ((CORRELATION_ID, correlation_id),),
            int(headers[REPLY_PARTITION] or b""),
        )
        self.producer.send(record).result(SOON_S)

    def is_busy(self, count: int) -> None:
        """Fails unless the engine soon has so many requests in it."""
        wait_until(lambda: self.engine.running() == count, SOON_S, f"{count} requests in the engine")

    def is_idle(self) -> None:
        """Fails unless the engine soon has nothing to do."""
        wait_until(lambda: self.engine.running() == 0, SOON_S, "the engine to be idle")


def client_of(instance: Instance, key: str = "none is asked for", **options: Any) -> openai.OpenAI:
    """A client, to be closed."""
    return openai.OpenAI(base_url=instance.url, api_key=key, **options)


def create_topics(settings: Settings) -> None:
    """Of all contracts. All instances share the one partition of replies, so that each sees what is for others."""
    topics = [NewTopic(replies_topic(settings.prefix), 1, 1)]
    topics += [NewTopic(control_topic(settings.prefix), 1, 1, topic_configs={"cleanup.policy": "compact"})]
    for model in (FREE, TAGGED, TOOLED):
        names = ContractNames(settings.prefix, model, 1)
        appended = {"message.timestamp.type": "LogAppendTime"}
        topics += [NewTopic(each, PARTITIONS, 1, topic_configs=appended) for each in names.request_topics]
        topics += [NewTopic(names.results, PARTITIONS, 1), NewTopic(names.dead, PARTITIONS, 1)]
        topics += [NewTopic(names.cancels, 1, 1)]
    admin: Any = KafkaAdminClient(bootstrap_servers=str(settings.bootstrap_servers))
    try:
        admin.create_topics(topics)
    finally:
        admin.close()


def write_packages(place: Path) -> tuple[Path, Path]:
    """The folders of both packages: free and tagged."""
    return (
        _bounded(write_package(place / FREE, model=FREE, user=None)),
        _bounded(write_package(place / TAGGED, model=TAGGED, user=None, output=TAGS_SCHEMA)),
    )


def write_package_with_tools(place: Path) -> Path:
    """The folder of the package whose model may call tools by itself."""
    return _bounded(write_package(place / TOOLED, model=TOOLED, user=None, extra='tool_parser = "hermes"'))


def _bounded(package: Path) -> Path:
    with (package / "package.toml").open("a") as file:
        file.write("\n[sampling]\nmax_tokens = 60\n")
    return package


def many_letters(count: int, letter: str = "[a-z]") -> Any:
    """The fields of a call whose answer has so many letters; of more than a thousand, whole thousands."""
    pattern = f"{letter}{{1000}}" * (count // 1000) if count > 1000 else f"{letter}{{{count}}}"
    return {"max_tokens": count + 8, **held_to(regex=pattern)}


@contextmanager
def stage(
    settings: Settings, place: Path, engine: Engine, workers_are_ready: Callable[[], None]
) -> Generator[Stage]:
    """The stage, once the workers are ready: the endpoint starts meanwhile."""
    keys_file = place / "api_keys.json"
    now_ms = int(time.time() * 1000)
    keys = {
        name: create_key(keys_file, name, tenant=name, now_ms=now_ms, limits=limits)[1]
        for name, limits in KEYS.items()
    }
    with ExitStack() as stack:
        endpoint = stack.enter_context(Instance(settings, log=place / "endpoint-1.log"))
        seen = Seen(settings)
        stack.callback(seen.close)
        workers_are_ready()
        endpoint.wait_ready(READY_S)
        wait_until(
            lambda: {FREE, TAGGED, TOOLED} <= _models(endpoint), SOON_S, "the endpoint to know the models"
        )
        client = client_of(endpoint)
        stack.callback(client.close)
        producer = PlainProducer(settings)
        stack.callback(producer.close)
        made = Stage(settings, engine, place, endpoint, seen, producer, client, keys, keys_file)
        with made.open:
            yield made


def _models(instance: Instance) -> set[str]:
    with httpx.Client(timeout=10) as client:
        return {each["id"] for each in client.get(f"{instance.url}/models").json()["data"]}


# --- calls ----------------------------------------------------------------------------------------------------------


TEXT = "Tell me of the mill."


def says(text: str = TEXT, **fields: Any) -> dict[str, Any]:
    """The arguments of a chat with one message."""
    return {"model": FREE, "messages": [{"role": "user", "content": text}]} | fields


def ask(client: openai.OpenAI, text: str = TEXT, **fields: Any) -> ChatCompletion:
    """A chat with one message, or with the `messages` that are given."""
    create: Any = client.chat.completions.create
    return create(**says(text) | fields)


def ask_raw(client: openai.OpenAI, text: str = TEXT, **fields: Any) -> LegacyAPIResponse[ChatCompletion]:
    """The same, with its headers."""
    create: Any = client.chat.completions.with_raw_response.create
    return create(**says(text) | fields)


def parse(client: openai.OpenAI, text: str = TEXT, **fields: Any) -> ParsedChatCompletion[Any]:
    """The same, read as the models that it is held to."""
    create: Any = client.chat.completions.parse
    return create(**says(text) | fields)


def complete(client: openai.OpenAI, prompt: str | list[str], **fields: Any) -> Completion:
    """A completion."""
    create: Any = client.completions.create
    return create(**{"model": FREE, "prompt": prompt} | fields)


def streamed(client: openai.OpenAI, text: str = TEXT, **fields: Any) -> openai.Stream[ChatCompletionChunk]:
    """A chat, streamed."""
    create: Any = client.chat.completions.create
    return create(**says(text) | fields, stream=True)


def held_to(**constraint: Any) -> Any:
    """`structured_outputs`, as the clients of vLLM send it."""
    return {"extra_body": {"structured_outputs": constraint}}


LETTERS = held_to(regex="[a-z]{20,30}")  # a text without a byte that is half a character


def events_of(lines: Iterator[str]) -> list[Any]:
    """The data of server-sent events; `[DONE]` as it is."""
    data = [line.removeprefix("data: ") for line in lines if line and not line.startswith(":")]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


def raw_stream(client: openai.OpenAI, **arguments: Any) -> tuple[Mapping[str, str], list[Any]]:
    """(the headers, the events) of a streamed chat as they are on the wire."""
    with client.chat.completions.with_streaming_response.create(stream=True, **arguments) as response:
        return response.headers, events_of(response.iter_lines())


def id_of(answer: ChatCompletion | ChatCompletionChunk) -> str:
    """The id of the request that was answered."""
    return answer.id.removeprefix("chatcmpl-")


def text_of(chunks: Any, index: int = 0) -> str:
    """The text that a choice's deltas add up to."""
    return "".join(
        choice.delta.content or "" for chunk in chunks for choice in chunk.choices if choice.index == index
    )
