"""The tasks that ship with t5like."""
