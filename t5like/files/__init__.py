"""Local and gs:// paths, atomic writes, locks and leases."""
