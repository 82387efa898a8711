"""Where output goes: terminals, pipes, sockets and files, written without waiting for readers or disks."""
