"""Stores: the ways to keep tasks that share one contract."""
