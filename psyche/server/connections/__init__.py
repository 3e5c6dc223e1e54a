"""The clients on the line: who is there, what each is owed and has been sent, what each may cost, how each ends.

Here belongs what is kept per connection or per client. How bytes go over a line stands in `psyche.wire`, what a
request does to the run in `server.handler`.
"""
