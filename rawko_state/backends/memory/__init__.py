"""Tasks in the memory of this process: for tests, and to show what a backend needs."""
