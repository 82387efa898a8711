"""The fork server: imports what the script imports first, then starts, signals and reaps the workers.

The agent executes ``PYTHON -u fork_server/__main__.py [--contain] -- SCRIPT ARGUMENTS`` in the job's
environment, with one end of a socketpair as descriptor 3. With ``--contain`` the server is PID 1 of
a PID namespace of its own. What follows ``--`` is for ``ps``.

The package is self-contained: standard library only, Python 3.8 or newer, relative imports only. So
workers have the job's interpreter and none of our modules.

    forking_process.py   the process that workers are forked from: subreaper, signals
    workers.py           starts, signals and reaps the workers
    worker_start.py      the steps of a forked child on its way to its program
    failure_notes.py     what executed workers send when their script fails
    script.py            what a forked worker runs
    binding.py           the CPUs and the memory of a worker
    cleanup.py           kills what workers leave behind
    lease.py             how long workers may run without a sign of the rest of the job
    warm_server.py       stays after its job, and forks a server child for each later one
    preloading/          what is imported before workers are forked, and whether that is safe

A worker is forked from the server, and then executes its program (spawn) or runs the script (fork).
For the latter it returns out of all functions here to ``__main__``, which executes the script. Before
anything of the job is imported, the server removes its own modules from ``sys.modules``. It uses the
C modules beneath some public ones, as these take longer to import.

Messages are marshalled dictionaries (version 2, which Python 3.8 and newer read alike) after a 4-byte
big-endian length. Descriptors travel with a frame's first byte. ``clusterrun.workers.channel`` is
the agent's end.

    agent to server                               server to agent
                                                  ready          refused
    prepare       command preload must_fork       prepared       in_place why complaint costs_time
                  known_variables workers                        loaded left_out
                  later_variables cpus            importing      module seconds
                  import_timeout
    start_worker  local_rank command variables    started        local_rank pid remark
                  startup_folder cpus memory      not_started    local_rank step error
                  blocked_signals                 exited         local_rank code failure
                  foreground_group,                  or          local_rank signal failure
                  3 descriptors                   failing        local_rank failure
                                                  stopped        local_rank number
    signal        local_ranks number group
                  except_failing
    forward       number                          not_handled    number local_ranks
                                                  signalled      number at
    cancel
    clean_up                                      cleaned_up     survivors
    lease         seconds                         not_contained  error
    stay_warm     path seconds key is_owned       warm

``prepare`` comes first, if at all; any message before ``prepared`` ends the preparation. When the
socket closes, because the agent ended or was killed, the server kills all workers and everything
that they left behind, and exits.

A server that stays (``--warm``) listens at ``path`` after ``warm``. The first message of each
connection there is one of these. After ``serve``, that connection is the socket to a server child;
``hold`` lasts as long as its connection.

    serve         key prepare, 1 descriptor       ready          pid
                                                  changed        what
    hold
    end
"""
