"""Task files in the project, with an index next to them."""
