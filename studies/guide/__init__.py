"""Sweeps of the laboratory, and the tables made of them."""
