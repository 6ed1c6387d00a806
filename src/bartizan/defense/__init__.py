"""Who takes part and with which weight: quarantine, recheck, reputation."""
