"""The page in the browser: read, search, follow and answer tasks. HTML from the server; scripts only add to it."""
