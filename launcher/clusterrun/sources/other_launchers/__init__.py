"""Lines written for other launchers: torchrun, Paddle, mpirun, deepspeed and their kin."""
