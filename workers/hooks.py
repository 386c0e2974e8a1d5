"""A package's hooks: code of its own before and after each generation.

They run in a few threads of their own, each call within the package's time limit. What goes wrong in one is its
request's failure and nobody else's. No thread can be stopped from outside: a call that does not end keeps its
thread, and when the last is gone each request is refused at once, loudly, until one comes back.
"""

from __future__ import annotations

import asyncio
import difflib
import hashlib
import importlib
import inspect
import logging
import queue
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headrace.schemas.codec import Codec, Encoding
from headrace.schemas.errors import HookFailed, MessageError, OutputError, PackageError
from headrace.schemas.messages import STATUS_ORDER, ErrorDetail, Message, Output, Request, Result, Status
from headrace.schemas.output_schema import OutputCheck
from headrace.schemas.package import HooksSource, Package
from headrace.schemas.strict_json import dump
from headrace.schemas.tool_calls import ToolCallCheck
from headrace.workers.answers import Served, detail
from headrace.workers.work import Work

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
Method = Callable[[Any], Any]

THREADS = 4
METHODS = ("before", "after")
MAX_WORDS = 500  # characters of a hook's own words in an error

# What is generated. The rest says who asked, and is in use before the hook is called.
CHANGED_BEFORE = frozenset(
    {"messages", "prompt", "variables", "tools", "tool_choice", "reasoning", "sampling", "output"}
)
CHANGED_AFTER = frozenset({"status", "outputs", "error", "attributes"})
STATUSES_AFTER: frozenset[Status] = frozenset({"ok", "truncated", "invalid_output", "failed", "rejected"})


@dataclass(frozen=True, slots=True)
class HookMethods:
    """What a package's class has of the two."""

    name: str  # as the package writes it
    before: Method | None
    after: Method | None


def load_hooks(package: Package) -> HookMethods | None:
    """Import and make the package's hooks; None: it has none.

    Raises PackageError for what cannot be imported or made, or has not the methods of a hook.
    """
    source = package.hooks
    if source is None:
        return None
    try:
        made: Any = getattr(_module_of(source, package), source.class_name)()
    except PackageError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        raise _fault(package, f"{source.name} cannot be made: {_words(error)}") from error
    found = {name: getattr(made, name, None) for name in METHODS}
    if all(method is None for method in found.values()):
        near = [each for each in dir(made) if difflib.get_close_matches(each, METHODS)]
        hint = f"; did you mean that with {', '.join(near)}?" if near else ""
        raise _fault(package, f"{source.name} has neither before(request) nor after(result){hint}")
    for each in dir(made):
        close = difflib.get_close_matches(each, METHODS, n=1, cutoff=0.75)
        if close and each not in METHODS and found[close[0]] is None:
            raise _fault(package, f"{source.name} has {each}; did you mean {close[0]}?")
    for name, method in found.items():
        if method is not None:
            _check_method(package, f"{source.name}.{name}", method)
    return HookMethods(source.name, found["before"], found["after"])


def _module_of(source: HooksSource, package: Package) -> types.ModuleType:
    if source.file is None or source.text is None:
        try:
            return importlib.import_module(source.module)
        except ModuleNotFoundError as error:
            if error.name and not source.module.startswith(error.name):
                raise  # it is there, and imports something that is not
            beside = package.directory / (source.module.replace(".", "/") + ".py")
            raise _fault(package, f"there is no {beside}, and no module {source.module} to import") from None
    # What the digest is of is what runs, and nothing is written beside the package. Under a name of its own: two
    # packages may each have a hooks.py, and neither is to hide a module of somebody else's.
    name = f"_headrace_hooks_{hashlib.sha256(str(source.file).encode()).hexdigest()[:16]}"
    module = types.ModuleType(name)
    module.__file__ = str(source.file)
    sys.modules[name] = module  # dataclasses and pickles look for it there
    exec(compile(source.text, str(source.file), "exec"), module.__dict__)
    return module


def _check_method(package: Package, name: str, method: Any) -> None:
    if not callable(method):
        raise _fault(package, f"{name} is no method")
    if inspect.iscoroutinefunction(method) or inspect.isgeneratorfunction(method):
        raise _fault(
            package, f"{name} must be a plain method: it runs in a thread of its own and may wait there"
        )
    try:
        inspect.signature(method).bind(None)
    except TypeError:
        raise _fault(package, f"{name} must take one argument") from None


def _fault(package: Package, message: str) -> PackageError:
    return PackageError(message, file=package.file, key="hooks")


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:MAX_WORDS]


# --- the threads ------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Call:
    """One call of a hook, on its way through a thread."""

    method: Method
    argument: Any
    answer: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop
    timer: asyncio.TimerHandle | None = None
    overdue: bool = False


class HookThreads:
    """Runs calls in a few daemon threads: one that never ends must not keep the process from ending. Loop only.

    `concurrent.futures` would wait for such a thread when the interpreter ends.
    """

    def __init__(self, timeout_s: float, threads: int = THREADS) -> None:
        self._timeout_s = timeout_s
        self._threads = threads
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._places = asyncio.Semaphore(threads)
        self._started = 0
        self._overdue = 0

    @property
    def hanging(self) -> int:
        """How many threads are in a call that is past its time limit."""
        return self._overdue

    @property
    def all_hang(self) -> bool:
        """Whether no thread is left."""
        return self._overdue == self._threads

    async def call(self, name: str, method: Method, argument: object) -> Any:
        """What the method returns. Raises HookFailed for an exception, a call past its time, and if all threads hang.

        The time limit begins when a thread is free.
        """
        await self._place(name)
        loop = asyncio.get_running_loop()
        call = _Call(method, argument, loop.create_future(), loop)
        call.timer = loop.call_later(self._timeout_s, self._is_overdue, call, name)
        if self._started < self._threads:
            self._started += 1
            threading.Thread(target=self._run, name=f"hook {self._started}", daemon=True).start()
        self._calls.put(call)
        try:
            return await call.answer
        except HookFailed:
            raise
        except BaseException as error:
            if not call.answer.done() or call.answer.cancelled():
                raise  # this task was cancelled; the call goes on, and keeps its place until it ends
            log.warning("%s failed", name, exc_info=error)
            raise HookFailed(f"{name} failed: {_words(error)}") from error

    def close(self) -> None:
        """Let the threads end, each after the call that it is in."""
        for _ in range(self._started):
            self._calls.put(None)

    async def _place(self, name: str) -> None:
        if not self.all_hang:
            await self._places.acquire()
            if not self.all_hang:
                return
            self._places.release()  # it was lent to wake those who wait: on to the next
        raise HookFailed(
            f"{name} was not called: all {self._threads} threads for hooks are in calls that took longer than "
            f"{self._timeout_s:g} s and have not ended; restart the worker, and see why they hang"
        )

    def _is_overdue(self, call: _Call, name: str) -> None:
        call.overdue = True
        self._overdue += 1
        log.warning("%s has not returned within %g s", name, self._timeout_s)
        if self.all_hang:
            log.error("all %d threads for hooks hang: each request fails until one returns", self._threads)
            self._places.release()  # lent, so that those who wait are told
        if not call.answer.done():
            call.answer.set_exception(HookFailed(f"{name} did not return within {self._timeout_s:g} s"))

    def _ended(self, call: _Call, value: Any, error: BaseException | None) -> None:
        assert call.timer is not None, "set before a thread sees the call"
        call.timer.cancel()
        lent = self.all_hang
        if call.overdue:
            self._overdue -= 1
        if not lent:  # else the place that was lent is this one
            self._places.release()
        if call.answer.done():
            return
        if error is not None:
            call.answer.set_exception(error)
        else:
            call.answer.set_result(value)

    def _run(self) -> None:
        while (call := self._calls.get()) is not None:
            value: Any = None
            error: BaseException | None = None
            try:
                value = call.method(call.argument)
            except (StopIteration, SystemExit, KeyboardInterrupt) as odd:
                error = RuntimeError(f"{type(odd).__name__}: {odd}")  # a future takes no StopIteration
            except BaseException as raised:  # noqa: BLE001 - whatever it is, it is this request's alone
                error = raised
            try:
                call.loop.call_soon_threadsafe(self._ended, call, value, error)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return
            del call, value, error


# --- the hooks ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Hooks:
    """A package's hooks at work. What they return is checked as what comes from outside is."""

    methods: HookMethods
    threads: HookThreads
    result_of: Callable[[Work, Served], Result]
    _codec: Codec = field(default_factory=Codec)

    @classmethod
    def of(
        cls, methods: HookMethods | None, package: Package, result_of: Callable[[Work, Served], Result]
    ) -> Hooks | None:
        """What `load_hooks` gave, ready to be called; `result_of` makes the result that `after` is shown."""
        return None if methods is None else cls(methods, HookThreads(package.hooks_timeout_s), result_of)

    @property
    def change_results(self) -> bool:
        """Whether what was generated may still change: then nothing of it may leave before."""
        return self.methods.after is not None

    async def before(self, request: Request) -> Request:
        """The request that is served. Raises HookFailed."""
        if self.methods.before is None:
            return request
        name = f"{self.methods.name}.before"
        given = await self.threads.call(name, self.methods.before, request)
        if given is None:
            return request
        changed = self._checked(name, Request, given)
        _refuse_changes(name, request, changed, CHANGED_BEFORE)
        return changed

    async def after(
        self, work: Work, served: Served, check: OutputCheck | None, calls: ToolCallCheck | None = None
    ) -> Served:
        """What is published of a generation. Never raises HookFailed: its outputs then go nowhere, for the hook may
        be what makes them fit to be seen.
        """
        if self.methods.after is None:
            return served
        name = f"{self.methods.name}.after"
        result = self.result_of(work, served)
        try:
            given = await self.threads.call(name, self.methods.after, result)
            if given is None:
                return served
            changed = self._checked(name, Result, given)
            _refuse_changes(name, result, changed, CHANGED_AFTER)
            _check_status(name, result, changed)
            return _held(name, served, result, changed, check, calls)
        except HookFailed as error:
            return replace(served, status="failed", outputs=[], error=detail(error))

    def _checked(self, name: str, kind: type[M], given: object) -> M:
        """As if it came over the wire: pydantic's `model_copy(update=...)` checks nothing."""
        if not isinstance(given, kind):
            raise HookFailed(f"{name} must return a {kind.__name__} or None, not {type(given).__name__}")
        try:
            data = self._codec.encode(given, Encoding.JSON)
            return self._codec.decode(kind, data).message
        except MessageError as error:
            raise HookFailed(f"what {name} returned is no {kind.__name__}: {error}") from None
        except Exception as error:  # it may hold objects of any kind
            raise HookFailed(f"what {name} returned cannot be written as JSON: {_words(error)}") from error


def _refuse_changes(name: str, given: Message, changed: Message, allowed: frozenset[str]) -> None:
    for each in type(given).model_fields:
        if each not in allowed and getattr(given, each) != getattr(changed, each):
            raise HookFailed(f"{name} may not change {each}; it may change {', '.join(sorted(allowed))}")


def _check_status(name: str, given: Result, changed: Result) -> None:
    if STATUS_ORDER.index(changed.status) < STATUS_ORDER.index(given.status):
        raise HookFailed(f"{name} may not make {given.status} into {changed.status}")
    if changed.status not in STATUSES_AFTER:
        raise HookFailed(
            f"{name} may not say {changed.status}; it may say {', '.join(sorted(STATUSES_AFTER))}"
        )
    if (changed.status == "ok") != (changed.error is None):
        raise HookFailed(f"{name}: a result has an error, which says why, unless it is ok, and not then")
    if len(changed.outputs) != len(given.outputs) and (changed.outputs or changed.status == "ok"):
        raise HookFailed(f"{name} made {len(changed.outputs)} outputs of {len(given.outputs)}")
    for before, after in zip(given.outputs, changed.outputs, strict=False):
        if before.finish_reason != after.finish_reason:
            raise HookFailed(f"{name} may not change finish_reason")


def _held(
    name: str,
    served: Served,
    given: Result,
    changed: Result,
    check: OutputCheck | None,
    calls: ToolCallCheck | None,
) -> Served:
    """The changed result; an `ok` one is held against the output schema, or the tools, once more."""
    outputs: list[Output] = []
    status, error = changed.status, changed.error
    for before, after in zip(given.outputs, changed.outputs, strict=False):
        value = before.value if after.text == before.text else None
        if status == "ok":
            try:
                if check is not None:
                    value = check.check(after.text)
                if calls is not None:
                    calls.check([call.function for call in after.tool_calls or ()])
            except OutputError as fault:
                why = detail(fault)
                status = "invalid_output"
                error = ErrorDetail(code=why.code, message=f"{name}: {why.message}", path=why.path)
                value = None
        if dump(after.value) not in (dump(before.value), dump(value)):
            raise HookFailed(f"{name}: value is what text says; change text")
        outputs.append(after.model_copy(update={"value": value}))
    return replace(served, status=status, outputs=outputs, error=error, attributes=changed.attributes)
