"""One open task, the same on every backend."""
