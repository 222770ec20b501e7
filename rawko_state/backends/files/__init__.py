"""Task files in the project, with an index beside them."""
