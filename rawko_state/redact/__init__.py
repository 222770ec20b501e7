"""Secrets in text: the known formats, and how they are removed before anything reaches the disk."""
