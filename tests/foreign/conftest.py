"""Leaves out the tests whose packages are not installed, and says so. In CI (``RAWKO_TEST_FOREIGN``) nothing may be missing."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest

NEEDED = {
    "test_atif.py": "atif",
    "test_claude_agent_sdk.py": "claude_agent_sdk",
    "test_examples.py": "agents",
    "test_langgraph.py": "langgraph.checkpoint.conformance",
    "test_mcp.py": "mcp",
    "test_openai_agents.py": "agents",
    "test_opentelemetry.py": "pydantic_ai",
}


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


_MISSING = {file: name for file, name in NEEDED.items() if not _is_installed(name)}
_NEVER = ["test_atif.py"] if sys.version_info < (3, 11) else []  # the package needs 3.11
collect_ignore = _NEVER if os.environ.get("RAWKO_TEST_FOREIGN") else list(_MISSING)


def pytest_report_header(config: pytest.Config) -> list[str]:
    return [f"NOT TESTED HERE: {file} needs {name}" for file, name in _MISSING.items()]
