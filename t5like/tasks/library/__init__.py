"""The tasks that t5like registers."""
