"""Values: what stands in a task file, what a task's status may be, and what all records together say."""
