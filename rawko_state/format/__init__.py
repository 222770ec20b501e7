"""The task file as bytes: specified in docs/format.md. Nothing in here touches a disk."""
