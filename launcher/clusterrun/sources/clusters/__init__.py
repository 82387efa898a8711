"""What schedulers and platforms say of a process's place in its job: one file for each."""
