"""Programs that tests start, kill, and look at what is left."""
