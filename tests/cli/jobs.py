"""A shell with one job, on the terminal of its standard input: ``jobs.py REPORT CONTROL WORD ...``.

It tells REPORT what happens to the job, one line each. When the job stops it waits for a line on CONTROL, then
brings it to the foreground again.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios


def main(report: str, control: str, *words: str) -> None:
    with open(int(report), "w", buffering=1) as told, open(int(control)) as orders:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        job = os.fork()
        if job == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execvp(words[0], words)
        while True:
            _, status = os.waitpid(job, os.WUNTRACED)
            reader = {job: "job", os.getpgrp(): "shell"}.get(os.tcgetpgrp(0), "other")
            os.tcsetpgrp(0, os.getpgrp())
            if not os.WIFSTOPPED(status):
                told.write(f"ended {os.waitstatus_to_exitcode(status)}, keyboard: {reader}\n")
                return
            told.write(f"stopped, keyboard: {reader}\n")
            orders.readline()
            os.tcsetpgrp(0, job)
            os.killpg(job, signal.SIGCONT)


if __name__ == "__main__":
    main(*sys.argv[1:])
