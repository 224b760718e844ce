"""`takehold run`: a command that lives only while its key is held, and a key that is held while it lives.

On files the command inherits the lock's descriptors: the key stays taken, and visible, until the last process
of its group is gone, even when this runner is killed. So the runner gives a key back only after the group.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import sys
import threading
import time
from typing import Any, Final, NoReturn

from takehold.cli.command import complain
from takehold.cli.group import CannotStart, Group, Plan
from takehold.cli.options import (
    BUSY,
    CANNOT_RUN,
    LOST,
    NOT_FOUND,
    Parser,
    code_of,
    locks_of,
    seconds,
    shown_url,
    timeout,
)
from takehold.cli.show import one_line
from takehold.cli.terminal import Terminal
from takehold.core.owner import Owner
from takehold.core.waits import hold_id
from takehold.errors import LockTimeout, TakeholdError, UsageError, WouldDeadlock
from takehold.locks._sync import Hold, Locks

__all__ = ["main", "parser"]

GRACE: Final = 1.0
"""Seconds from TERM to KILL for a command that is evicted: less than `takehold evict` waits."""
HURRY: Final = 0.05
"""The most it gets when somebody else may have the key already."""
LONGEST_TITLE: Final = 120
PASSED_ON: Final = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2,
    signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT,
)  # fmt: skip
JOB_CONTROL: Final = (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
A_LOSS: Final = 0
"""In the pipe of signal numbers: the hold is about to be lost."""

EXAMPLES: Final = """\
  takehold run -k nightly -- ./backup.sh --full      one at a time; waits up to 30 s
  takehold run -k nightly --timeout 0 -- ./backup.sh skip it when it is running already (exit code 75)
  takehold run -k acct/3 -k acct/7 -- ./transfer.py  several keys, all or none"""

CODES: Final = """\
exit codes: the command's own, 128+n when signal n ended it, 75 the key is busy, 76 the hold was lost and the
command was stopped, 69 the backend does not answer or refuses, 126 cannot be executed, 127 not found, 2 wrong usage
the command finds TAKEHOLD_KEY, TAKEHOLD_FENCE and TAKEHOLD_HOLD in its environment"""


def parser(name: str) -> Parser:
    """The options."""
    made = Parser(name, "Run a command while holding one or more keys.", EXAMPLES, codes=CODES)
    made.usage = "takehold run -k KEY [-k KEY ...] [options] -- command [argument ...]"
    made.add_argument("-k", "--key", action="append", required=True, help="the key to hold; may be repeated")
    made.add_argument(
        "--timeout", type=timeout, default=30.0, metavar="S",
        help="seconds to wait for the key (default 30; 0: one attempt; none: for ever)",
    )  # fmt: skip
    made.add_argument("--shared", action="store_true", help="hold the keys together with other --shared runs")
    made.add_argument("--namespace", default="", metavar="NS", help="keep the keys of applications apart")
    made.add_argument("--label", help="a name for this owner, shown by ls and in others' timeouts")
    made.add_argument(
        "--grace", type=seconds, default=GRACE, metavar="S",
        help=f"when evicted: seconds from TERM to KILL (default {GRACE:g}); the key is kept meanwhile. "
        f"At most {HURRY:g} when the key is lost already",
    )  # fmt: skip
    made.add_argument("-v", "--verbose", action="store_true", help="say on stderr what was taken, and where")
    return made


def main(args: argparse.Namespace) -> int:
    """Take the keys, run the command, leave with its exit code."""
    if not args.command:
        raise UsageError(
            "put the command after --, as in: takehold run -k KEY -- command argument (see: takehold run --help)"
        )
    say = Voice(args.json, args.verbose or args.json)
    try:
        hold = _take(args, say)
    except TakeholdError as error:
        if not args.json:
            raise
        say.no(error)
        return code_of(error)
    return _leave(Runner(hold, args, say).run())


class Voice:
    """What the runner itself says: on stderr, because stdout belongs to the command."""

    def __init__(self, as_json: bool, verbose: bool) -> None:
        self._json = as_json
        self._verbose = verbose

    def tell(self, event: str, sentence: str, **facts: Any) -> None:
        """Something worth knowing with -v."""
        if self._verbose:
            self.warn(event, sentence, **facts)

    def warn(self, event: str, sentence: str, **facts: Any) -> None:
        """Something everybody must know."""
        if self._json:
            print(json.dumps({"event": event, "message": sentence, **facts}), file=sys.stderr, flush=True)
        else:
            complain(sentence)

    def no(self, error: TakeholdError) -> None:
        """The key was not taken."""
        owner = error.owner if isinstance(error, LockTimeout) else None
        facts = {}
        if isinstance(owner, Owner):
            facts["owner"] = {"host": owner.host, "pid": owner.pid, "label": owner.label, "site": owner.site}
        self.warn("busy" if code_of(error) == BUSY else "failed", str(error), **facts)


def _take(args: argparse.Namespace, say: Voice) -> Hold:
    locks = locks_of(args, namespace=args.namespace, label=args.label, timeout=args.timeout)
    _refuse_nesting(locks, args)
    request = locks.lock(*args.key, mode="shared" if args.shared else "exclusive")
    # For whoever meets this owner in `ls` or in a timeout, the command is what a line of code is elsewhere.
    request._site = _title(args.command)
    began = time.monotonic()
    hold = request.acquire()
    waited = time.monotonic() - began
    keys = ", ".join(repr(str(key)) for key in hold.keys)
    fence = _fence(hold)
    token = f"fence {fence}" if fence is not None else "without a fence (to have one: takehold init URL)"
    say.tell(
        "acquired", f"{keys} taken after {waited:.3f} s in {shown_url(args)}, {token}",
        url=shown_url(args), keys=[str(key) for key in hold.keys], fence=fence, waited=waited, hold=_ids(hold),
    )  # fmt: skip
    return hold


def _title(command: list[str]) -> str:
    text = one_line("takehold run -- " + " ".join(command))
    return text if len(text) <= LONGEST_TITLE else text[: LONGEST_TITLE - 3] + "..."


def _fence(hold: Hold) -> int | None:
    """The fence, or None where the backend has none until it is prepared: a command may do without."""
    return None if any(fence is None for _, _, fence in hold.grants) else hold.fence


def _ids(hold: Hold) -> list[str]:
    return [hold_id(seat) for seat in hold._seats]


def _refuse_nesting(locks: Locks, args: argparse.Namespace) -> None:
    """Our own runner further up holds this key until we end: waiting for it would never end."""
    above = os.environ.get("TAKEHOLD_HOLD", "").split()
    for record in locks.who() if above else ():
        if record.id in above and record.key in args.key and record.namespace == args.namespace:
            raise WouldDeadlock(
                f"{record.key!r} is held by {record.owner}, which started this command and waits for its end",
                key=record.key,
            )


class Runner:
    """Stands between the hold and the command until both have ended."""

    def __init__(self, hold: Hold, args: argparse.Namespace, say: Voice) -> None:
        self._hold = hold
        self._say = say
        self._command: list[str] = args.command
        self._grace: float = args.grace
        self._terminal = Terminal.ours()
        self._reason = ""
        # Signals arrive as bytes of a pipe, in order, and so does a loss: one place to wait for everything.
        self._inbox, self._outbox = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> int:
        """Start the command and see it through; the exit code."""
        self._listen()
        for seat in self._hold._seats:
            seat.before_loss = self._on_loss
        # Asked after the line above: a loss before it would never be heard of.
        if self._hold.lost:
            self._say.warn("lost", f"{self._keys()} was lost before the command was started")
            return LOST
        try:
            group = Group(self._plan())
        except CannotStart as error:
            self._give_back()
            self._say.warn("failed", f"cannot run {self._command[0]!r}: {error}")
            return NOT_FOUND if error.missing else CANNOT_RUN
        code = self._see_through(group)
        if self._terminal is not None:
            self._terminal.take_back(group.id)
        if not group.alive:
            self._give_back()
        # Else its descriptors keep the key: a release here would take it from under them.
        return code

    def _keys(self) -> str:
        return ", ".join(repr(str(key)) for key in self._hold.keys)

    def _plan(self) -> Plan:
        keys = "\n".join(str(key) for key in self._hold.keys)
        own = {"TAKEHOLD_KEY": keys, "TAKEHOLD_HOLD": " ".join(_ids(self._hold))}
        if (fence := _fence(self._hold)) is not None:
            own["TAKEHOLD_FENCE"] = str(fence)
        # Without a fence of our own, that of a run around us would pass for ours.
        inherited = {name: value for name, value in os.environ.items() if name != "TAKEHOLD_FENCE"}
        return Plan(
            self._command,
            {**inherited, **own},
            frozenset(self._hold._desk.descriptors(self._hold._seats)),
            self._terminal is not None and self._terminal.at_once,
        )

    def _listen(self) -> None:
        signal.set_wakeup_fd(self._outbox, warn_on_full_buffer=False)
        for number in PASSED_ON:
            # Ignored from the start, as under nohup: then it is ignored for the command, too.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, _heard)
        signal.signal(signal.SIGCHLD, _heard)

    def _on_loss(self, reason: str) -> None:
        """With the key still ours where the backend allows it: on the watching thread, or before the start."""
        self._reason = reason
        if threading.current_thread() is threading.main_thread():
            return
        os.write(self._outbox, bytes([A_LOSS]))
        # The main thread stops the group, gives the key back and ends this process.
        threading.Event().wait()

    def _give_back(self) -> None:
        self._hold.release()
        self._hold._desk.close()

    # -- while it runs -------------------------------------------------------------------------------

    def _see_through(self, group: Group) -> int:
        """Pass signals on until the command has ended and the key needs us no more."""
        poll = select.poll()
        poll.register(self._inbox, select.POLLIN)
        pause: float | None = None
        while True:
            heard = os.read(self._inbox, 512) if poll.poll(pause) else b""
            if A_LOSS in heard:
                return self._stop(group)
            for number in heard:
                self._pass_on(group, number)
            group.reap()
            if group.stopped is not None:
                self._suspended(group, group.stopped)
                group.stopped = None
            if group.code is not None and (not group.alive or (pause is None and group.keeps_the_key)):
                return group.code
            if group.code is not None and pause is None:
                # What is left of the group has closed the descriptors: only we keep the key for it.
                self._say.tell("lingers", f"{self._keys()} is kept for what the command left running")
                pause = 50

    def _pass_on(self, group: Group, number: int) -> None:
        if number == signal.SIGCONT:
            self._resume(group)
        elif number != signal.SIGCHLD:
            group.signal(number)

    def _suspended(self, group: Group, number: int) -> None:
        """The command was stopped by its terminal, as by Ctrl-Z: then so are we, for the shell to see."""
        if self._terminal is None or number not in JOB_CONTROL:
            return
        if number != signal.SIGTSTP and self._terminal.give(group.id):
            # It only wanted the keyboard.
            group.signal(signal.SIGCONT)
            return
        self._terminal.take_back(group.id)
        ours = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.killpg(os.getpgrp(), signal.SIGTSTP)
        # Either we are stopped here until `fg` or `bg`, or nobody could ever wake us and the kernel ignored it.
        time.sleep(0.1)
        signal.signal(signal.SIGTSTP, ours)
        self._resume(group)

    def _resume(self, group: Group) -> None:
        if self._terminal is not None and self._terminal.at_once:
            self._terminal.give(group.id)
        group.signal(signal.SIGCONT)

    def _stop(self, group: Group) -> int:
        """The hold is lost: nothing of the group may outlive it."""
        still_ours = all(seat.session is None or seat.session.lost is None for seat in self._hold._seats)
        grace = self._grace if still_ours else min(self._grace, HURRY)
        group.signal(signal.SIGTERM)
        # A stopped process sees TERM only when it goes on.
        group.signal(signal.SIGCONT)
        if not group.gone_within(grace):
            group.signal(signal.SIGKILL)
            # No limit: a process that cannot be killed (another user's, or stuck in the kernel) keeps the key.
            while not group.gone_within(1.0):
                self._say.tell("lingers", f"still waiting for the end of process group {group.id}")
        if self._terminal is not None:
            self._terminal.restore()
        self._say.warn("lost", f"{self._keys()} was lost: {self._reason}; the command was stopped", reason=self._reason)
        return LOST


def _heard(number: int, frame: object) -> None:
    """Nothing to do here: the number is in the pipe already."""


def _leave(code: int) -> NoReturn:
    """End at once: nothing of Python's own clean-up may touch a key that the command's group still keeps."""
    sys.stdout.flush()
    os._exit(code)
