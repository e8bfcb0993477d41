"""What happens when the operating system says no, or the process dies, at any call: see `make faults`."""
