"""The GPUs of a machine: listed by vendor, made visible by variables, located on NUMA nodes."""
