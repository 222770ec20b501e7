"""Ways in for other programs.

    coding agents    hook_event, hooks, install, recording, steps: record them through their hooks
                     handover, native: continue a task in one of them
                     mcp, mcp_install, recall: let them look up past tasks
    frameworks       langgraph, claude_agent_sdk, openai_agents: their storage interfaces, on task_log, checkpoints, patches
    telemetry        opentelemetry: a span exporter; server/telemetry.py receives the same, exchange/telemetry.py records both

A module that needs an extra imports it at the top, and nothing imports such a module unless it is asked for.
"""
