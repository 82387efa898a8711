"""The fork server: imports what the script imports first, then starts, reaps and ends the workers.

The agent executes ``PYTHON -u fork_server/__main__.py [--contain] -- SCRIPT ARGUMENTS`` in the job's
environment, with one end of a socketpair as descriptor 3; with ``--contain`` it is PID 1 of a
namespace of its own; what follows ``--`` is for ``ps``. It stands alone: standard library only,
Python 3.8 or newer, nothing of the launcher imported, so that workers get the job's interpreter and
nothing of ours.

A worker is forked from it, and then either executes its program (spawn) or runs the script in place
(fork): it returns out of all functions here, and ``__main__`` executes the script. For the latter
the server hides its own modules before anything of the job's is imported; that is why it uses the C
modules beneath the public ones where there are such: they cost a start less, and there is less to
hide.

Messages are marshalled dictionaries (version 2, which all these Pythons agree on) behind a 4-byte
big-endian length; descriptors ride on a frame's first byte (``clusterrun.workers.channel`` is the
other end).

    agent to server                               server to agent
                                                  hello     refused
    prepare  argv preload insist environ          prepared  in_place why loaded left_out complaint
             workers unsettled cpus patience      started   local_rank pid remark
    spawn    local_rank argv env cpus mask        failed    local_rank step error pid
             startup foreground, 3 descriptors    exited    local_rank code, or signal, left
    signal   local_ranks number group             stopped   local_rank number
             spare_failing
    forward  number                               deaf      number local_ranks
    call_off                                      signalled number at
    sweep                                         swept     survivors
                                                  uncontained  error

``prepare`` comes first, if at all; whatever follows before ``prepared`` ends the preparation. When
the socket closes, because the agent ended or was killed, the server kills every group that it made
and everything that re-parented to it, and exits.
"""
