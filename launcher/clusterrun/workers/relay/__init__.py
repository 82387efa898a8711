"""The relay: the process that owns the workers' pipes, the terminal and the log files.

    client.py             the agent's half: forks the relay and talks with it
    loop.py               the process: waits for pipes, outputs and the agent
    streams.py            one pipe of a worker: lines, filters, and the places that take them
    screen.py             standard output and error: whole lines of many workers, and one live line
    files.py              files, which threads write
    equal_tracebacks.py   those of several workers are shown once
    kept.py               what the report and commands get of a worker's lines
    stacks.py             the stacks that workers print on SIGQUIT
    routes.py             where each stream goes, decided from the job alone

Messages travel by ``fork_server.channel``; ``key`` is a worker's local rank. A request is a method of
the client's by its own name, and ``do_`` with that name in the loop.

    agent to relay                                      relay to agent
    open             output streams, descriptors
    finish           key                                output_ended   key tail error_file
    say              text                               output_closed
    append           path line top
    link             path target
    remove_at_end    path
    look_at_lines    number                             lines          number lines
    look_at_stacks   number seconds                     stacks         number stacks shown
    expect_no_stacks keys
    watch_activity   seconds                            idle           seconds
                                                        active
    close            seconds                            closed         losses drained
"""
