"""An app whose clients are told what to be."""
