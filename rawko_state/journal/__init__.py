"""The only code that touches task files, drafts, blobs and leases."""
