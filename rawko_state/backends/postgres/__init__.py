"""A team's tasks, in PostgreSQL."""
