"""The port: what a technology must give to be a backend, and what it says it can.

A backend opens sessions; a session keeps grants alive, and when it dies they are lost. Sessions come in two
kinds. An *instant* one answers in a system call (memory, file) and is asked under the desk's mutex. A *trip*
one answers over a wire and is asked in batches: `apply` takes releases and asks together and answers each
ask with what it was granted, up to its first busy id. What it cannot know it must find out, or end itself.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from takehold.core.deadline import Deadline
from takehold.core.record import HoldRecord
from takehold.core.want import Want
from takehold.errors import BackendError
from takehold.runtime import Event, Runtime, Signal

if TYPE_CHECKING:
    from takehold.core.combine import Combiner
    from takehold.core.seat import Seat

__all__ = [
    "Ask",
    "Backend",
    "Board",
    "Capabilities",
    "Grant",
    "Granted",
    "Losses",
    "Refused",
    "Releasable",
    "Session",
    "SessionLost",
    "TripSession",
    "Turn",
    "Unanswered",
]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do. The conformance suite skips by these, never by name."""

    across: Literal["process", "host", "server"]
    """How far exclusion reaches."""
    shared: bool = True
    fence: Literal["none", "after init", "always"] = "always"
    many: Literal["one trip", "one by one"] = "one by one"
    waiting: Literal["local", "queue", "watch", "poll"] = "queue"
    loss: Literal["none", "passive", "trust deadline"] = "none"
    evict: Literal["none", "ask", "terminate"] = "none"
    raw_ids: bool = False
    """Whether `advisory(n)` excludes programs that do not use Takehold."""
    max_held: int | None = None


class Grant:
    """One id held at the backend. Several local holds can stand on it, at once or in turn.

    `handle` is the session's own; it is None for a grant that began as a seat taken alone.
    """

    users = 0
    joined = 0
    handed = 0
    given = False
    shareable = True
    """Whether later readers of this process may join it."""

    def __init__(self, session: Session, want: Want, fence: int | None, at: int, handle: Any = None) -> None:
        self.session = session
        self.want = want
        self.fence = fence
        self.at = at
        self.handle = handle


Granted: TypeAlias = Sequence[int | Grant | None]
"""What an ask was granted, in order: a fence (None where there are none), or a grant that is kept elsewhere.

Shorter than what was asked for: the next id is busy.
"""
Releasable: TypeAlias = "Grant | Seat"
"""What can be given back: a seat alone stands for its grant."""


class Ask:
    """One caller's part of a batch: granted in order, up to the first busy id, which ends it.

    On its way it is pending, sent, answered; or given up by its caller.
    """

    __slots__ = ("beside", "error", "event", "given_up", "granted", "lead", "lost", "sent", "until", "wants")

    def __init__(self, wants: tuple[Want, ...], until: float) -> None:
        self.wants = wants
        self.until = until
        """When its caller has waited long enough for an answer, on the runtime's clock."""
        self.lead = self.sent = self.given_up = False
        self.lost = False
        """Answered after its caller had left: what it was granted has gone back."""
        self.granted: Granted | None = None
        self.error: Exception | None = None
        self.beside = False
        """A further shared grant beside one this process has: it must queue with the others, not re-enter."""
        self.event: Event | Signal | None = None
        """Whom to wake with the answer; None while its caller does not sleep."""


class Turn(Protocol):
    """A place in the backend's own queue for one id; at most one per id, process and face."""

    async def take(self, deadline: Deadline, seconds: float) -> Grant | None:
        """Wait for the grant, at most `seconds` and not past the deadline; None keeps the place.

        When it raises, nothing is held and the place is given up.
        """

    async def leave(self) -> None:
        """Give up the place. Nothing is held afterwards, also when the grant was on its way."""


class Board(Protocol):
    """Where holders and waiters are written down for other processes to read."""

    def id_of(self, seat: Seat) -> str:
        """A name for a hold that an operator can type."""

    def hold(self, seat: Seat) -> None:
        """Note a hold; sets `seat.slot`."""

    def wait(self, seat: Seat) -> None:
        """Note a waiter; sets `seat.slot`."""

    def erase(self, seat: Seat) -> None:
        """Forget either."""


class Session(Protocol):
    """What keeps grants alive. This much every session has."""

    lost: str | None
    """Why it died, or None while it lives."""
    name: str
    """The first part of the ids of its holds: unique wherever they can be seen."""
    usable: bool
    """Alive, and something looks after it; `attend` when not."""

    @property
    def instant(self) -> bool:
        """Whether it answers in a system call."""

    @property
    def board(self) -> Board | None:
        """Where its holders are written down, if anywhere."""

    def attend(self) -> None:
        """Make sure now that it is alive, set `lost` if not, and look after it from here on."""

    def take_alone(self, seat: Seat) -> bool:
        """Instant only: take a key that nobody here has; sets `seat.fence` and `seat.at`."""

    def give_alone(self, seat: Seat) -> None:
        """Instant only: give back what `take_alone` took."""

    def take(self, want: Want, beside: bool) -> Grant | None:
        """Instant only: the grant, or None when it cannot be had right now. Never waits."""

    def give(self, grant: Grant) -> None:
        """Instant only: give a grant back."""

    def forget(self, want: Want) -> None:
        """Instant only: make sure that an interrupted `take` left nothing. Idempotent."""

    def refence(self, grant: Grant) -> tuple[int | None, int]:
        """A newer fence for the next local holder of a grant, and the time in ns; no I/O."""

    def turn(self, want: Want, beside: bool, seat: Seat) -> Turn:
        """A place in the backend's queue."""

    def doubt(self, seat: Seat) -> str | None:
        """Why this hold can no longer be vouched for, from what is known without I/O; None if it can."""

    def deadlock(self, seat: Seat) -> str | None:
        """A sentence when this waiting seat is in a cycle across processes and is the one to give up."""

    async def blockers(self, want: Want) -> list[HoldRecord]:
        """Who holds this id elsewhere, for an error message. Best effort, at most 50 ms."""

    def descriptors(self, seat: Seat) -> tuple[int, ...]:
        """File descriptors that keep this hold alive in a child that inherits them."""

    def close(self) -> None:
        """End it; whatever it kept is released. Idempotent."""

    def after_fork(self) -> None:
        """In a forked child: let go of inherited descriptors without touching what they mean to the parent."""


class TripSession(Session, Protocol):
    """A session that answers over a wire."""

    combiner: Combiner | None
    """Set by the desk: a turn that polls sends its questions through it."""
    in_flight: bool
    """A statement was sent and its answer can still be read, with `answer`, by whoever comes."""

    room: int
    """How many more may be held before `admit` must be asked."""

    def admit(self, count: int) -> None:
        """Raise `BackendRefused` when so many more would be too many. Costs no I/O."""

    async def apply(self, releases: Sequence[Releasable], asks: Sequence[Ask], seconds: float) -> list[Granted]:
        """One statement. Releases first, then each ask on its own, in order, up to its first busy id.

        Raises `Unanswered` when the answer does not come within `seconds`: the statement stays in flight.
        Raises `SessionLost` when the session is gone: then nothing that it kept is held any more. Raises
        `Refused` when nothing was granted and everybody who asked is to be told why.
        """

    def die(self, reason: str) -> None:
        """End it, and tell every hold on it. Idempotent."""

    def overdue(self, seconds: float) -> None:
        """A statement has been unanswered for so long: give the session up when that is too long. For tasks."""

    quick: bool
    """Whether it has a shorter way for one single key: the next three."""

    def carries(self, releases: Sequence[Releasable], ask: Ask) -> bool:
        """Whether `fetch_quickly` can do these together."""

    async def fetch_quickly(self, releases: Sequence[Releasable], ask: Ask) -> Granted:
        """`apply` for one ask of one key, and what it carries. For tasks."""

    def apply_quickly(self, releases: Sequence[Releasable], ask: Ask, seconds: float) -> None:
        """`apply` for one release, or for an ask of one key, without a coroutine; sets `ask.granted`. For threads."""

    async def answer(self) -> list[Granted]:
        """Wait for the answer of the statement in flight, as long as the session puts up with; as `apply`."""


class Losses(Protocol):
    """Whom a session tells about losses: the desk. Never call it under the desk's mutex."""

    def session_lost(self, session: Session, reason: str) -> None:
        """Every hold on this session is lost."""

    def lose(self, seat: Seat, reason: str) -> None:
        """This one hold is lost; the rest stays."""

    def sweep(self) -> None:
        """Release holds that were dropped without a release."""


class SessionLost(Exception):
    """The session died under a statement."""


class Refused(Exception):
    """The server refused a statement: nothing of it was granted, all its releases are done, the session lives."""

    def __init__(self, error: BackendError) -> None:
        super().__init__(str(error))
        self.error = error


class Unanswered(Exception):
    """The answer of a statement has not come in time; it may still."""


class Backend(Protocol):
    """A technology that can grant keys. Making one does no I/O."""

    @property
    def identity(self) -> Hashable:
        """Equal identities share one desk."""

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    @property
    def solo(self) -> bool:
        """Nobody else can want its keys: local hand-over needs no bound, and both faces share one desk."""

    def place(self, encoded: bytes, number: int | None) -> tuple[Hashable, Any]:
        """The id of an encoded key, and the backend's own form of it. Pure."""

    async def open(self, rt: Runtime, losses: Losses, seconds: float) -> Session:
        """A live session within so many seconds, or `BackendRefused` / `BackendUnavailable`."""

    def open_now(self, rt: Runtime, losses: Losses) -> Session:
        """`open` for an instant backend."""

    async def who(self, rt: Runtime) -> list[HoldRecord]:
        """Every holder and waiter that can be seen, of every process; those of `solo` backends the desk knows."""

    async def evict(self, rt: Runtime, hold_id: str, *, terminate: bool, timeout: float) -> bool:
        """Ask the owner to give up exactly that hold; True when it is gone."""

    async def init(self, rt: Runtime, *, fence_from: int | None) -> str:
        """Make what the backend needs; says what was done."""
