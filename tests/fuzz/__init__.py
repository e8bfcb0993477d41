"""Input that nobody wrote: see `make fuzz`."""
