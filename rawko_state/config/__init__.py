"""Settings, and where the project is."""
