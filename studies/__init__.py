"""Evidence about bartizan: the paper, theory, speed, single measurements, and the tables of the pages."""
