"""Client updates of any container, checked once and read in blocks of columns."""
