"""Both faces in one vocabulary, so that every case of the suite is written once.

A `Worker` is one actor: a thread on the blocking face, one long-lived task on the asyncio face, where "the
same thread or task" means something. Whatever it is asked to do is done there, one thing after another, and
the caller blocks until it is done, or holds a `Call` to look at later:

    a, b = face.worker(), face.worker()
    hold = a.acquire("k")
    assert b.try_acquire("k") is None
    waiting = b.start_acquire("k", timeout=5)
    face.until_waiting("k")
    hold.release()
    assert waiting.result().fence > hold.fence

For more than one step, `worker.do(work)` runs `work(locks)` there. It may be a plain function, or a generator
in which `yield` stands for `await` where there is something to await, and lets the others run where not:

    def work(locks):
        hold = yield locks.lock("k").acquire()
        yield                       # here anybody else may run
        yield hold.release()
"""

from takehold.testing.faces.tasks import AsyncioFace
from takehold.testing.faces.threads import ThreadFace
from takehold.testing.faces.vocabulary import PATIENCE, Call, Face, Held, Steps, Work, Worker, eventually

__all__ = [
    "PATIENCE",
    "AsyncioFace",
    "Call",
    "Face",
    "Held",
    "Steps",
    "ThreadFace",
    "Work",
    "Worker",
    "eventually",
]
