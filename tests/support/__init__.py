"""What the tests share: a machine of their own, processes, PostgreSQL, faults."""
