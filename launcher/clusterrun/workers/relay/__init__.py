"""The relay: the process that owns the workers' pipes, the terminal and the log files.

    relay_client.py    the agent's half: forks the relay and talks with it
    relay_process.py   what the forked process does before and after its loop
    relay_loop.py      waits for pipes, outputs and the agent
    switchboard.py     connects each worker's pipes with the screen and its log files
    streams.py         one pipe of a worker: what is shown, logged and kept of it
    routes.py          where each stream goes, decided from the job alone
    display.py         the screen: whole lines of many workers, and one live line
    log_files.py       files, which threads write

Messages travel by ``fork_server.channel``; ``key`` is a worker's local rank.

    agent to relay                                 relay to agent
    open             output streams, descriptors
    finish           key                           output_ended   key tail error_file
    print            text                          output_closed
    append           path line
    link             path target
    hide_interrupts
    collect_stacks   number patient                stacks         number stacks shown
    skip_stacks      keys
    watch_activity   seconds                       idle           seconds
                                                   active
    close            seconds                       closed         losses
"""
