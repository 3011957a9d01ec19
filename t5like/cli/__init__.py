"""The commands of the command line, one file or folder each. Nothing outside of this package imports it."""
