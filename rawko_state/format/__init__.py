"""The task file as bytes, as specified in docs/format.md. Nothing in this package touches the disk."""
