"""Decide which clients take part and with which weights: quarantine, recheck, reputation."""
