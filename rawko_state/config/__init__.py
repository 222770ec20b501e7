"""Settings, and how the project is found."""
