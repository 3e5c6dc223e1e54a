"""Errors of the operating system, as sentences: what was in use, what is wrong with it, and the way out."""

import errno
from typing import Final

SENTENCES: Final = {
    errno.ENOENT: "there is no such file or folder",
    errno.EEXIST: "exists already; name another path",
    errno.EISDIR: "is a folder; name a file",
    errno.ENOTDIR: "a part of this path is a file; name a path whose parents are folders",
    errno.EACCES: "permission denied; change its permissions, or name another path",
    errno.EPERM: "the system does not permit this; name another path",
    errno.EROFS: "lies on a read-only disk; name another path",
    errno.ENOSPC: "the disk is full; free some space, or name a path on another disk",
    errno.EDQUOT: "your disk quota is used up; free some space, or name a path on another disk",
    errno.EFBIG: "grows beyond the largest file that is allowed here; see `ulimit -f`",
    errno.EIO: "the disk reports an error; see `dmesg`, and name a path on another disk",
    errno.EMFILE: "this process may not open more files; allow more: ulimit -n 65536",
    errno.ENFILE: "the system cannot open more files; end some programs",
    errno.ENAMETOOLONG: "this name is too long; choose a shorter one",
    errno.ELOOP: "its links lead in a circle; name another path",
    errno.ENOTEMPTY: "is not empty; name another folder",
    errno.EADDRINUSE: "this port is in use; choose another one",
    errno.ENOMEM: "there is not enough memory; end some programs",
}
UNNAMED: Final = "the system refused an operation"


def describe_os_error(error: OSError) -> str:
    names = [str(name) for name in (error.filename, error.filename2) if name not in (None, "")]
    return f"{' and '.join(names) or UNNAMED}: {describe_reason(error)}"


def describe_reason(error: OSError) -> str:
    return SENTENCES.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
