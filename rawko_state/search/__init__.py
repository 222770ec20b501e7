"""Full-text search: what counts as a word, what a query means, and the Whoosh index that answers it quickly."""
