"""Secrets in text: which formats there are, and how they are taken out before anything reaches the disk."""
