"""Ways in from other programs: hooks of agents, and commands whose output is recorded."""
