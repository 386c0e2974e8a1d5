"""The lines of a JSONL file as requests, read without holding up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import IO, Any, cast

from headrace.schemas.codec import Codec
from headrace.schemas.errors import InvalidField, MessageError, Undecodable, UsageError
from headrace.schemas.messages import Request
from headrace.schemas.strict_json import JsonFault, dump, parse, pointer

READ_AHEAD = 1000  # lines


@dataclass(frozen=True, slots=True)
class Line:
    """One request, or why there is none; `id_is_new`: the line had no id."""

    number: int | None  # from 1; None: not from a file
    request: Request | MessageError
    id_is_new: bool = False


async def only(line: Line) -> AsyncIterator[Line]:
    """This one and no other."""
    yield line


async def read_lines(file: IO[bytes], as_variables: bool, id_field: str | None = None) -> AsyncIterator[Line]:
    """The requests of a JSONL file, each as `read_line` takes it; blank lines are passed over.

    A thread reads, since standard input may have nothing to give for as long as it likes, and neither replies nor
    Ctrl-C can wait for that. Raises UsageError where the file cannot be read.
    """
    loop = asyncio.get_running_loop()
    texts: asyncio.Queue[bytes | OSError | None] = asyncio.Queue()
    room = threading.Semaphore(READ_AHEAD)

    def read() -> None:
        try:
            # A reader of our own: sys.stdin's is closed while the interpreter ends, which a blocked read forbids.
            with open(file.fileno(), "rb", closefd=False) as lines:
                for text in lines:
                    room.acquire()
                    loop.call_soon_threadsafe(texts.put_nowait, text)
            end: OSError | None = None
        except OSError as error:
            end = error
        loop.call_soon_threadsafe(texts.put_nowait, end)

    def read_while_wanted() -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody wants the rest
            read()

    threading.Thread(target=read_while_wanted, name="headrace-lines", daemon=True).start()
    number = 0
    while (text := await texts.get()) is not None:
        if isinstance(text, OSError):
            raise UsageError(f"{file.name} cannot be read: {text}")
        room.release()
        number += 1
        if text.strip():
            yield read_line(number, text, as_variables, id_field)


def read_line(number: int, text: bytes, as_variables: bool, id_field: str | None = None) -> Line:
    """One line as a request.

    `as_variables`: the line is an object of variables; `id_field` names one that is the request's id instead.
    """
    try:
        given: Any = parse(text.decode("utf-8-sig" if number == 1 else "utf-8"))
    except UnicodeDecodeError as error:
        return Line(number, Undecodable(f"not UTF-8: {error.reason}", offset=error.start))
    except JsonFault as fault:
        return Line(number, Undecodable(fault.reason, path=pointer(fault.path), offset=fault.index))
    if not isinstance(given, dict):
        return Line(number, Undecodable("not a JSON object"))
    fields = cast("dict[str, Any]", {"variables": given} if as_variables else given)
    if id_field is not None:
        found = cast("dict[str, Any]", given).pop(id_field, None)
        if not isinstance(found, str | int) or isinstance(found, bool):
            what = "is not there" if found is None else "is neither a string nor an integer"
            return Line(number, InvalidField(f"the id {what}", path=pointer((id_field,))))
        fields["id"] = str(found)
    id_is_new = "id" not in fields
    fields.setdefault("id", uuid.uuid4().hex)
    try:
        return Line(number, Codec().decode(Request, dump(fields).encode()).message, id_is_new)
    except MessageError as error:
        return Line(number, error)
