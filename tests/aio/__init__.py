"""Tests of rawko_state.aio."""
