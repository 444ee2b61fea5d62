"""The words for strategies: `spec` lists them, `options` what each takes, `registry` where it is
implemented, `choice` which one a block takes."""
