"""The tables and figures of the pages."""
