"""Integrations with other programs: agent hooks, commands whose output is recorded, and handover to other agents."""
