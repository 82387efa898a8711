"""The C library, /proc, namespaces and limits."""
