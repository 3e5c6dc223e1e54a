"""The TCP client of a coordinator server: dials it, follows its state, and sends messages and owner's commands."""
