"""The way to a coordinator server over TCP: dial it, follow its state, send messages and owner's commands."""
