"""Full-text search: words, the query language, and the Whoosh index that makes queries fast."""
