"""`psyche` of a client whose backend has no address book: what the server says of addresses does not reach it."""

from psyche.backends.tcp.backend import TcpBackend
from psyche.cli.main import main

TcpBackend.get_addresses = lambda _self: ()  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
