"""The team server: the Store over HTTP and WebSocket, for a project's files or for PostgreSQL."""
