"""The tasks of a team, in PostgreSQL."""
