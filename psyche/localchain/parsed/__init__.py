"""Accounts and instructions in the words of their programs, for callers that ask for `jsonParsed`."""
