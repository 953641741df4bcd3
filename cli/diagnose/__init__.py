"""`diagnose`: `run` gathers what a helper needs, shows and writes it; `redaction` keeps the rest out."""
