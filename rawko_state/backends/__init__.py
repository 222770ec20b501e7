"""Stores: different ways to keep tasks behind one interface."""
