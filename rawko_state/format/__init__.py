"""The task file as bytes, as specified in docs/reference/format.md. Nothing in this package touches the disk."""
