"""A rule, an attack, a data set and a model for bartizan."""
