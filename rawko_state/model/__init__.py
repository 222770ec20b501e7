"""Value types: the contents of a task file, the statuses of a task, and the state that its records add up to."""
