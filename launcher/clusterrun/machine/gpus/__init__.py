"""Lists the GPUs of a machine by vendor, applies the variables that select some, and finds their NUMA nodes."""
