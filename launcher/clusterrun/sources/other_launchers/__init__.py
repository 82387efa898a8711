"""Command lines and variables of other launchers: torchrun, Paddle, mpirun, deepspeed and others."""
