"""Tasks in this process's memory: for tests, and as an example of what a backend needs."""
