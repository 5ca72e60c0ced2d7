"""Where records are written: one file per kind of sink."""
