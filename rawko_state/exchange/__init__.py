"""Import and export: lossless JSON, Markdown, an HTML page to share, and other agents' sessions."""
