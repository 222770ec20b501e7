"""Tasks in other forms: JSON that comes back byte for byte, Markdown, and a page to send to somebody."""
