"""The tasks of a server, over HTTP."""
