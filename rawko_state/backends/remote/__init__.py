"""A server's tasks, over HTTP."""
