"""The root of the error tree: every error says what happened, where, and what to do."""


class PsycheError(Exception):
    """Base class of all errors that Psyche raises on purpose."""

    exit_code = 1  # of a process that ends with it


class ConfigError(PsycheError):
    """A configuration that cannot be used; the message names file, line, key and the rule."""


class VersionMismatch(ConfigError):
    """The run wants another version of this program."""

    exit_code = 10


class WireError(PsycheError):
    """Bytes from another process that break the format; the message names the field and the rule."""


class NetworkError(PsycheError):
    """A peer, a stream or a blob failed; the message names the peer and the operation."""


class DataError(PsycheError):
    """Training data that cannot be read or used."""


class UnusableDataError(DataError):
    """Training data that does not fit the run's model: trying again does not help."""


class StorageError(PsycheError):
    """A file of a storage cannot be read; the message names the file, the place and the reason."""


class StorageRefused(StorageError):
    """It would not help to ask again: not there, not allowed, another version, a private address."""


class TrainerError(PsycheError):
    """The trainer refused or failed an operation."""


class UnusableModelError(TrainerError):
    """A model that the run cannot train: trying again does not help."""


class BackendError(PsycheError):
    """The coordinator's backend could not be reached or refused a request."""


class HandshakeError(BackendError):
    """The other side has the wrong identity or speaks another protocol; a retry does not help."""


class RunClosed(BackendError):
    """The run's owner has closed it while this process followed it."""

    exit_code = 11


class ChainReplaced(BackendError):
    """Every endpoint leads to another chain than when this process started."""

    exit_code = 12
