"""Calls that nobody waits for once they are cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


async def in_thread_left_behind(function: Callable[[], None]) -> None:
    """`asyncio.to_thread`, but when it is cancelled nobody waits for the thread, nor does the end of the process."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()

    def settle(error: BaseException | None) -> None:
        if ended.done():
            return
        if error is None:
            ended.set_result(None)
        else:
            ended.set_exception(error)

    def run() -> None:
        failure: BaseException | None = None
        try:
            function()
        except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(settle, failure)

    threading.Thread(target=run, name="opening", daemon=True).start()
    await ended
