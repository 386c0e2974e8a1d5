"""What waits in one lane: an equal share of tokens for each tenant. Pure.

Each tenant has a count of the tokens that it was charged; the one with the lowest count is next, and its oldest
request goes. So while two tenants both wait, what they were charged differs by one request at most.

A tenant that has nothing waiting must not save up: when it comes back it begins where those that waited have got to
(the *level*), unless its own count is higher. The level is what each tenant would have been charged had all of them
been served a token at a time, in turn: a charge of t tokens raises it by t / (tenants that count). A tenant counts
while something of it waits, and afterwards until the level has caught up with its own count; then it is forgotten.
Because the level rises with everything that is admitted, an endless stream of tenants never seen before cannot keep
an old one waiting: they begin at the level, and soon that is above the old one's count.

Everything is O(log n): the tenants stand in a heap by their count, their requests in one by arrival. What has left
is taken out of the heaps when it comes to the top, or by `sweep()`.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from itertools import count

from headrace.workers.key_order import Tenant, Waiting


@dataclass(slots=True, eq=False)
class _Account:
    """One tenant: its count of tokens, what of it waits, and its entry in the heap of turns (None: it rests).

    `noted`: it has an entry in the heap of those that rest, which may be older than its count.
    """

    tenant: Tenant
    tokens: float
    waiting: list[tuple[int, Waiting]] = field(default_factory=list[tuple[int, Waiting]])
    turn: tuple[float, int, _Account] | None = None
    noted: bool = False


class LaneQueue:
    """The requests of a lane that may go. Those behind another of their key are not in here."""

    def __init__(self) -> None:
        self._accounts: dict[Tenant, _Account] = {}
        self._turns: list[tuple[float, int, _Account]] = []
        self._resting: list[tuple[float, int, _Account]] = []
        self._order = count()
        self._level = 0.0

    def push(self, waiting: Waiting) -> None:
        """Queue one. It keeps the place that its arrival gives it among those of its tenant."""
        tenant = waiting.tenant
        account = self._accounts.get(tenant)
        if account is None:
            account = self._accounts[tenant] = _Account(tenant, self._level)
        heapq.heappush(account.waiting, (waiting.arrival, waiting))
        waiting.queued = True
        if account.turn is None:
            least = self._least()
            if least is not None:
                self._level = max(self._level, least.tokens)
            account.tokens = max(account.tokens, self._level)
            self._take_turn(account)

    def peek(self) -> Waiting | None:
        """The next to go, which stays; None: nothing here may go."""
        while (account := self._least()) is not None:
            while account.waiting:
                waiting = account.waiting[0][1]
                if waiting.ready:
                    return waiting
                heapq.heappop(account.waiting)
                waiting.queued = False  # where its key holds it up, it is pushed again
            self._rest(account)
        return None

    def pop(self, tokens: int) -> Waiting:
        """Take the next out and charge its tenant. `peek()` must have shown one."""
        account = self._least()
        assert account is not None, "pop() without peek()"
        _, waiting = heapq.heappop(account.waiting)
        waiting.queued = False
        if not account.waiting:
            self._rest(account)
        self._charge(account, tokens)
        self._forget_levelled()
        return waiting

    def charge(self, tenant: Tenant, tokens: int) -> None:
        """Charge more tokens than `pop()` did: a request took more than was expected."""
        account = self._accounts.get(tenant)
        if account is None:  # the level had caught up with it
            account = self._accounts[tenant] = _Account(tenant, self._level)
            self._rest(account)
        self._charge(account, tokens)
        self._forget_levelled()

    def sweep(self) -> None:
        """Let go of everything that is gone."""
        for account in list(self._accounts.values()):
            account.waiting = [entry for entry in account.waiting if not entry[1].gone]
            heapq.heapify(account.waiting)
            if not account.waiting and account.turn is not None:
                self._rest(account)
        self._turns = [turn for turn in self._turns if turn[2].turn is turn]
        heapq.heapify(self._turns)
        self._forget_levelled()

    def _least(self) -> _Account | None:
        """The tenant whose turn it is."""
        while self._turns and self._turns[0][2].turn is not self._turns[0]:
            heapq.heappop(self._turns)  # it was charged since, and stands further behind too
        return self._turns[0][2] if self._turns else None

    def _charge(self, account: _Account, tokens: int) -> None:
        self._level += tokens / len(self._accounts)
        account.tokens += tokens
        if account.turn is not None:
            self._take_turn(account)

    def _take_turn(self, account: _Account) -> None:
        account.turn = (account.tokens, next(self._order), account)
        heapq.heappush(self._turns, account.turn)

    def _rest(self, account: _Account) -> None:
        account.turn = None
        if not account.noted:
            account.noted = True
            heapq.heappush(self._resting, (account.tokens, next(self._order), account))

    def _forget_levelled(self) -> None:
        """Forget the tenants that rest and whose count the level has reached."""
        while self._resting and self._resting[0][0] <= self._level:
            _, _, account = heapq.heappop(self._resting)
            account.noted = False
            if account.turn is not None:
                continue  # it is back
            if account.tokens > self._level:
                self._rest(account)  # charged since
            else:
                del self._accounts[account.tenant]
