"""Which requests run, and which slot and pages each owns. Host side, plain Python, no device work.

A request is admitted when a decode row, a slot and all pages of its longest possible sequence are free. Reserving everything at
admission means that a running request can never be stopped for lack of memory.

Requests of one prompt that are admitted together share the pages that all but its last token fill. A sequence writes from its
last prompt token on, so a shared page is never written.
"""

from collections import deque
from dataclasses import dataclass, field

from onecat_jax.errors import RequestError
from onecat_jax.request import Request


@dataclass
class PagePool:
    """Free lists of pages and slots. Page 0 and slot 0 are padding and never handed out."""

    pages: int  # including page 0
    slots: int  # including slot 0
    page_size: int
    free_pages: list[int] = field(init=False)
    free_slots: list[int] = field(init=False)
    users: list[int] = field(init=False)  # of each page

    def __post_init__(self) -> None:
        self.free_pages = list(range(self.pages - 1, 0, -1))
        self.free_slots = list(range(self.slots - 1, 0, -1))
        self.users = [0] * self.pages

    def pages_for(self, tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-tokens // self.page_size)

    def take(self, tokens: int, shared: tuple[int, ...] = ()) -> tuple[int, tuple[int, ...]] | None:
        """A slot and pages for a sequence of this length, or None if either is short.

        Args:
          tokens: of the whole sequence.
          shared: its first pages, in use by another sequence.
        """
        need = self.pages_for(tokens) - len(shared)
        if not self.free_slots or need > len(self.free_pages):
            return None
        pages = shared + tuple(self.free_pages.pop() for _ in range(need))
        for page in pages:
            self.users[page] += 1
        return self.free_slots.pop(), pages

    def give_back(self, slot: int, pages: tuple[int, ...]) -> None:
        """The opposite of `take`: a page is free when its last user has gone."""
        self.free_slots.append(slot)
        for page in reversed(pages):
            self.users[page] -= 1
            if not self.users[page]:
                self.free_pages.append(page)


@dataclass(frozen=True)
class Admission:
    """A request that may run now. With a leader, admitted in the same wave, it starts from what the leader's prefill leaves."""

    request: Request
    leader: Request | None


@dataclass
class Scheduler:
    """First come, first served."""

    pool: PagePool
    max_rows: int
    max_model_len: int
    waiting: deque[Request] = field(default_factory=deque)
    running: list[Request] = field(default_factory=list)

    def check(self, request: Request) -> None:
        """Refuses what could never run, whatever else runs.

        Raises:
          RequestError: too long for the model's limit or for the cache.
        """
        prompt = len(request.prompt)
        if prompt + 1 > self.max_model_len:
            raise RequestError(
                f"the prompt has {prompt} tokens; max_model_len {self.max_model_len} leaves room for "
                f"{self.max_model_len - 1} and one new token: shorten the prompt or raise max_model_len."
            )
        need, have = self.pool.pages_for(request.longest), self.pool.pages - 1
        if need > have:
            raise RequestError(
                f"the request may grow to {request.longest} tokens, {need} pages of {self.pool.page_size}; the cache has "
                f"{have} pages: lower max_tokens or raise gpu_memory_utilization."
            )

    def add(self, request: Request) -> None:
        """Queues a request; RequestError as `check`."""
        self.check(request)
        self.waiting.append(request)

    def admit(self) -> list[Admission]:
        """Moves as many waiting requests as fit to running, in order, and returns them."""
        admitted: list[Admission] = []
        while self.waiting and len(self.running) < self.max_rows:
            request = self.waiting[0]
            leaders = (a.request for a in admitted if a.leader is None)
            leader = next((each for each in leaders if request.continues(each)), None)
            taken = self.pool.take(request.longest, self._shared_pages(leader))
            if taken is None:
                break
            self.waiting.popleft()
            request.slot, request.pages = taken
            self.running.append(request)
            admitted.append(Admission(request, leader))
        return admitted

    def _shared_pages(self, leader: Request | None) -> tuple[int, ...]:
        """Pages that the leader's prefill fills; its last prompt token is the first one to be written later."""
        if leader is None:
            return ()
        return leader.pages[: (len(leader.prompt) - 1) // self.pool.page_size]

    def finish(self, request: Request) -> None:
        """Takes a request out, waiting or running, and frees what it owns. Twice is once."""
        if request in self.running:
            self.running.remove(request)
            self.pool.give_back(request.slot, request.pages)
            request.slot, request.pages = 0, ()
        elif request in self.waiting:
            self.waiting.remove(request)

    @property
    def busy(self) -> bool:
        return bool(self.waiting or self.running)
