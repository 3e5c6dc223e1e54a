"""Starts a program that dies with its parent: `python -S launch.py PARENT_PID[:SIGNAL] PROGRAM [ARGUMENTS]`.

It uses only the standard library and is run by its path, so that it starts fast.
The kernel sends it SIGKILL, or SIGNAL, when the thread that started it ends, even by `kill -9`.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Tie this process to its parent's life, then exec the program."""
    parent, _, number = arguments[1].partition(":")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(number or signal.SIGKILL), 0, 0, 0) != 0:
        sys.stderr.write(f"prctl: {os.strerror(ctypes.get_errno())}\n")
        return 126
    if os.getppid() != int(parent):  # the parent died before the call above
        return 125
    try:
        os.execv(arguments[2], arguments[2:])  # noqa: S606 - no shell wanted
    except OSError as error:
        sys.stderr.write(f"{arguments[2]}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv))
