"""The index: SQLite through Peewee. Everything in it is derived from the task files and can be deleted."""
