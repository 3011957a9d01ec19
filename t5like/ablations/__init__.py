"""The T5 paper's tables, the sweep that trains their rows, and the report that compares the results."""
