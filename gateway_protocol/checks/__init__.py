"""The stages of request validation, one module each; `validation` sets their order."""
