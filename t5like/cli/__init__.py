"""The verbs of the command line, one a file; the only place where the rooms meet."""
