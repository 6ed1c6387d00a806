"""`bartizan plan`."""
