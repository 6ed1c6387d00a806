"""Single measurements, each quoted on a page."""
