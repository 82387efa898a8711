"""Histories of events and actions: the specification of ending and restarting."""

import signal
from typing import get_args

import pytest

from tests.agent.door import (
    Attempt,
    Event,
    ForkServerReady,
    HelperFailed,
    Interrupted,
    LocalRank,
    LookEvent,
    NodeLost,
    OutputGone,
    PrintNotice,
    SignalNotHandled,
    Succeeded,
)
from tests.agent.histories import (
    ASK_STACKS,
    FINISH,
    FORK_SERVER_LOST,
    GRACE,
    HUSH,
    LAST_WORDS,
    NODE_0_LOST,
    PAUSE,
    READER_GONE,
    RELAY_LOST,
    REPORT_END,
    RESTART,
    RESUME,
    SWEEP,
    TIME_IS_UP,
    History,
    again,
    ask,
    collect,
    decline,
    exited,
    external_cause_of,
    forward,
    got,
    hand_on,
    history,
    kill,
    killed,
    not_started,
    ordered,
    printed,
    report_failure,
    report_interrupted,
    started,
    stopped,
    swept,
    verdict,
    workers,
)
from tests.agent.notices import (
    INTERRUPTED,
    LOST_BY_OTHERS,
    OUTPUT_CLOSED,
    binding_differs,
    killing,
    not_handled,
    stacks_follow,
    stopping,
    stopping_here,
    stopping_others,
)

TERM, INT, HUP, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL

SUCCESS = [
    history("every worker succeeds", workers(2))
    .when(started(0), started(1))
    .when(exited(0))
    .then(collect(0))
    .when(printed(0))
    .when(exited(1))
    .then(collect(1), SWEEP)
    .when(swept())
    .then(LAST_WORDS)
    .when(printed(1))
    .then(FINISH),
    history("the last words come before the sweep is over", workers(1))
    .when(started(0), exited(0))
    .then(collect(0), SWEEP)
    .when(printed(0))
    .when(swept())
    .then(FINISH),
    history("a restart is for failures only", workers(1, restarts=3))
    .when(started(0), exited(0), printed(0), swept())
    .then(collect(0), SWEEP, FINISH),
    history("a worker may end before others have started", workers(2))
    .when(started(0), exited(0))
    .then(collect(0))
    .when(started(1), exited(1))
    .then(collect(1), SWEEP),
    history("a remark on the fork server is printed", workers(1))
    .when(ForkServerReady("", (), at=1.0))
    .when(ForkServerReady("a warning", ("PR_SET_PDEATHSIG (Operation not permitted)",), at=1.0))
    .then(
        PrintNotice("the workers' interpreter printed when it started: a warning"),
        PrintNotice(
            "the kernel refuses PR_SET_PDEATHSIG (Operation not permitted):"
            " if clusterrun is killed, processes of the job may live on"
        ),
    ),
    history("a worker that is bound otherwise than planned is reported", workers(1))
    .when(started(0, remark="asked for CPUs [0, 9], got [0]"))
    .then(PrintNotice(binding_differs(0, "asked for CPUs [0, 9], got [0]"))),
]

FAILURE = [
    history("the first failure ends the others: stop, kill, cleanup, last output", workers(3))
    .when(started(0), started(1), started(2))
    .when(exited(1, 3))
    .then(collect(1), ask(0, 2))
    .when(TIME_IS_UP)
    .then(PrintNotice(killing(2, GRACE)), kill(0, 2))
    .when(killed(0, KILL))
    .then(collect(0))
    .when(killed(2, KILL))
    .then(collect(2), SWEEP)
    .when(swept())
    .then(LAST_WORDS)
    .when(printed(0), printed(1))
    .when(printed(2))
    .then(FINISH),
    history("the grace is over as soon as all have ended", workers(2))
    .when(started(0), started(1), killed(1, signal.SIGSEGV))
    .then(collect(1), ask(0))
    .when(killed(0, TERM))
    .then(collect(0), SWEEP),
    history("a second failure changes nothing", workers(3))
    .when(started(0), started(1), started(2), exited(0, 1))
    .then(collect(0), ask(1, 2))
    .when(exited(1, 2))
    .then(collect(1)),
    history("the last worker that fails stops no other", workers(2))
    .when(started(0), started(1), exited(0))
    .then(collect(0))
    .when(exited(1, 1))
    .then(collect(1), SWEEP),
    history("workers that are still starting are asked, too", workers(2))
    .when(started(0), exited(0, 1))
    .then(collect(0), ask(1))
    .when(started(1))
    .when(killed(1, TERM))
    .then(collect(1), SWEEP),
    history("programs other than Python are asked as groups", workers(2, signal_group=True))
    .when(started(0), started(1), exited(0, 1))
    .then(collect(0), ask(1, group=True)),
    history("one that can't be executed ends the others", workers(2))
    .when(started(0), not_started(1))
    .then(collect(1), ask(0)),
    history("a worker that even SIGKILL does not end holds nothing up", workers(2))
    .when(started(0), started(1), exited(1, 1), TIME_IS_UP)
    .then(collect(1), ask(0), PrintNotice(killing(1, GRACE)), kill(0))
    .when(TIME_IS_UP)
    .then(SWEEP)
    .when(swept("pid 100 (python, state D in nfs_wait)"))
    .then(LAST_WORDS)
    .when(printed(1))
    .then(FINISH),
    history("it may end after all", workers(2))
    .when(started(0), started(1), exited(1, 1), TIME_IS_UP, TIME_IS_UP)
    .then(collect(1), ask(0), PrintNotice(killing(1, GRACE)), kill(0), SWEEP)
    .when(killed(0, KILL))
    .then(collect(0))
    .when(swept())
    .then(LAST_WORDS)
    .when(printed(1), printed(0))
    .then(FINISH),
    history("output that does not end is given up", workers(1))
    .when(started(0), exited(0, 1), swept())
    .then(collect(0), SWEEP, LAST_WORDS)
    .when(TIME_IS_UP)
    .then(FINISH),
    history("a fork server that never answers is given up", workers(1))
    .when(started(0), exited(0, 1))
    .then(collect(0), SWEEP)
    .when(TIME_IS_UP)
    .then(LAST_WORDS)
    .when(printed(0))
    .then(FINISH)
    .when(swept()),
]

RESTARTS = [
    history("a failure is followed by a fresh attempt", workers(2, restarts=1))
    .when(started(0), started(1), exited(0, 1), killed(1, TERM), printed(0), printed(1))
    .then(collect(0), ask(1), collect(1), SWEEP)
    .when(swept())
    .then(RESTART),
    history("and by the end, once no restart is left", workers(1, restarts=0))
    .when(started(0), exited(0, 1), printed(0), swept())
    .then(collect(0), SWEEP, FINISH),
    history("a signal that killed a worker is a failure", workers(1, restarts=1))
    .when(started(0), killed(0, KILL), printed(0), swept())
    .then(collect(0), SWEEP, RESTART),
    history("what can't be executed can't be executed again", workers(2, restarts=3))
    .when(not_started(0), not_started(1), printed(0), printed(1), swept())
    .then(collect(0), ask(1), collect(1), SWEEP, FINISH),
]

SIGNALS = [
    history("SIGTERM asks all to end; the job is interrupted, though they end well", workers(2))
    .when(started(0), started(1))
    .when(got(TERM))
    .then(PrintNotice(stopping(TERM, 2, GRACE)), hand_on(TERM, 0, 1))
    .when(exited(0), exited(1), printed(0), printed(1), swept())
    .then(collect(0), collect(1), SWEEP, FINISH)
    .because(Interrupted(TERM)),
    history("SIGINT is passed on as SIGINT, and its tracebacks are known", workers(2))
    .when(started(0), started(1), got(INT))
    .then(HUSH, PrintNotice(stopping(INT, 2, GRACE)), hand_on(INT, 0, 1))
    .because(Interrupted(INT)),
    history("SIGHUP ends the job as SIGTERM does", workers(1))
    .when(started(0), got(HUP))
    .then(PrintNotice(stopping(HUP, 1, GRACE)), hand_on(TERM, 0))
    .because(Interrupted(HUP)),
    history("SIGTERM may come before any worker has started", workers(2))
    .when(got(TERM))
    .then(PrintNotice(stopping(TERM, 2, GRACE)), hand_on(TERM, 0, 1))
    .because(Interrupted(TERM)),
    history("the grace after a signal ends as any other", workers(1))
    .when(started(0), got(TERM), TIME_IS_UP)
    .then(
        PrintNotice(stopping(TERM, 1, GRACE)),
        hand_on(TERM, 0),
        PrintNotice(killing(1, GRACE)),
        kill(0),
    )
    .because(Interrupted(TERM)),
    history("a second Ctrl-C kills at once", workers(2))
    .when(started(0), started(1), got(INT, at=10.0))
    .then(HUSH, PrintNotice(stopping(INT, 2, GRACE)), hand_on(INT, 0, 1))
    .when(exited(0, 130))
    .then(collect(0))
    .when(got(INT, at=11.3))
    .then(kill(1))
    .because(Interrupted(INT)),
    history("a third one changes nothing", workers(1))
    .when(started(0), got(INT, at=10.0), got(INT, at=11.1))
    .then(HUSH, PrintNotice(stopping(INT, 1, GRACE)), hand_on(INT, 0), kill(0))
    .when(got(INT))
    .because(Interrupted(INT)),
    history("a SIGTERM that comes twice within a second came once", workers(1))
    .when(started(0), got(TERM, at=10.0))
    .then(PrintNotice(stopping(TERM, 1, GRACE)), hand_on(TERM, 0))
    .when(got(TERM, at=10.9))
    .because(Interrupted(TERM)),
    history("so did a Ctrl-C that a wrapper passes on as well", workers(1))
    .when(started(0), got(INT, at=10.0))
    .then(HUSH, PrintNotice(stopping(INT, 1, GRACE)), hand_on(INT, 0))
    .when(got(INT, at=10.0001))
    .because(Interrupted(INT)),
    history("a second SIGTERM that is meant so kills at once", workers(1))
    .when(started(0), got(TERM, at=10.0))
    .then(PrintNotice(stopping(TERM, 1, GRACE)), hand_on(TERM, 0))
    .when(got(TERM, at=11.1))
    .then(kill(0))
    .because(Interrupted(TERM)),
    history("a hangup at the heels of a Ctrl-C is an echo of it", workers(1))
    .when(started(0), got(INT, at=10.0))
    .then(HUSH, PrintNotice(stopping(INT, 1, GRACE)), hand_on(INT, 0))
    .when(got(HUP, at=10.1))
    .because(Interrupted(INT)),
    history("a scheduler's SIGTERM does not shorten the grace after a failure", workers(2))
    .when(started(0), started(1), exited(0, 1))
    .then(collect(0), ask(1))
    .when(got(TERM, at=11.0), got(TERM, at=11.9))
    .when(got(TERM, at=20.0))
    .then(kill(1)),
    history("a SIGTERM to all processes may be seen in the workers first", workers(2))
    .when(started(0), started(1), killed(0, TERM))
    .then(collect(0), ask(1))
    .when(got(TERM, at=10.1))
    .because(Interrupted(TERM)),
    history("a SIGTERM that comes later has not ended them", workers(2))
    .when(started(0), started(1), killed(0, TERM))
    .then(collect(0), ask(1))
    .when(got(TERM, at=11.1)),
    history("nor one that comes at the heels of a failure", workers(2))
    .when(started(0), started(1), exited(0, 1))
    .then(collect(0), ask(1))
    .when(killed(1, TERM))
    .then(collect(1), *SWEEP)
    .when(got(TERM, at=10.1)),
    history("a person's Ctrl-C does", workers(2))
    .when(started(0), started(1), exited(0, 1))
    .then(collect(0), ask(1))
    .when(got(INT, at=11.0))
    .then(kill(1)),
    history("a signal to the whole job may reach a worker first", workers(2))
    .when(started(0), started(1), killed(0, TERM))
    .then(collect(0), ask(1))
    .when(got(TERM, at=10.9))
    .because(Interrupted(TERM)),
    history("one that comes later is the scheduler's answer to a failure", workers(2))
    .when(started(0), started(1), killed(0, TERM))
    .then(collect(0), ask(1))
    .when(got(TERM, at=11.1)),
    history("another one than killed the worker has nothing to do with it", workers(2))
    .when(started(0), started(1), killed(0, signal.SIGKILL))
    .then(collect(0), ask(1))
    .when(got(TERM, at=10.1)),
    history("neither has one that killed it after another had failed", workers(2))
    .when(started(0), started(1), exited(0, 1))
    .then(collect(0), ask(1))
    .when(killed(1, TERM))
    .then(collect(1), SWEEP)
    .when(got(TERM, at=10.1)),
    history("SIGUSR1 is passed on to those who handle it, and ends nothing", workers(2))
    .when(started(0), started(1), got(signal.SIGUSR1))
    .then(forward(signal.SIGUSR1))
    .when(SignalNotHandled(signal.SIGUSR1, (LocalRank(1),), at=10.0))
    .then(PrintNotice(not_handled("SIGUSR1", "1")))
    .when(SignalNotHandled(signal.SIGUSR1, tuple(map(LocalRank, (3, 0, 1))), at=10.0))
    .then(PrintNotice(not_handled("SIGUSR1", "0-1, 3")))
    .when(SignalNotHandled(signal.SIGUSR1, (), at=10.0)),
    history("a signal to the workers' parent is one to us", workers(2))
    .when(started(0), started(1), got(signal.SIGUSR1, to_fork_server=True))
    .then(forward(signal.SIGUSR1))
    .when(got(TERM, to_fork_server=True))
    .then(PrintNotice(stopping(TERM, 2, GRACE, to_fork_server=True)), hand_on(TERM, 0, 1))
    .because(Interrupted(TERM)),
    history("one to all processes of the job comes by two ways, each time", workers(1))
    .when(started(0), got(signal.SIGUSR1, at=10.0))
    .then(forward(signal.SIGUSR1))
    .when(got(signal.SIGUSR1, at=10.1, to_fork_server=True))
    .when(got(signal.SIGUSR1, at=10.6, to_fork_server=True))
    .then(forward(signal.SIGUSR1))
    .when(got(signal.SIGUSR1, at=10.5)),
    history("two of them within a second are two where they come by one way", workers(1))
    .when(started(0), got(signal.SIGUSR1, at=10.0), got(signal.SIGUSR1, at=10.1))
    .then(forward(signal.SIGUSR1), forward(signal.SIGUSR1))
    .when(got(signal.SIGUSR1, at=11.2, to_fork_server=True))
    .then(forward(signal.SIGUSR1)),
    history("a SIGTERM by two ways came once", workers(1))
    .when(started(0), got(TERM, at=10.0, to_fork_server=True))
    .then(PrintNotice(stopping(TERM, 1, GRACE, to_fork_server=True)), hand_on(TERM, 0))
    .when(got(TERM, at=10.2))
    .because(Interrupted(TERM)),
    history("a realtime signal, which has no name, is one to pass on", workers(1))
    .when(started(0), got(40))
    .then(forward(40))
    .when(SignalNotHandled(40, (LocalRank(0),), at=10.0))
    .then(PrintNotice(not_handled("signal 40", "0"))),
    history("SIGQUIT shows the stacks of the running workers, and ends nothing", workers(3))
    .when(started(0), started(1), got(signal.SIGQUIT))
    .then(PrintNotice(stacks_follow(2)), ASK_STACKS),
    history("SIGTSTP and SIGCONT stop and continue the workers with us", workers(1))
    .when(started(0), got(signal.SIGTSTP))
    .then(PAUSE)
    .when(got(signal.SIGCONT))
    .then(RESUME),
]

TERMINAL = [
    history("Ctrl-C goes from the terminal straight to the worker", workers(1, foreground=True))
    .when(started(0), killed(0, INT))
    .then(collect(0), PrintNotice(INTERRUPTED), SWEEP)
    .when(printed(0), swept())
    .then(FINISH)
    .because(Interrupted(INT)),
    history("and is followed by no restart", workers(1, foreground=True, restarts=3))
    .when(started(0), killed(0, INT), printed(0), swept())
    .then(collect(0), PrintNotice(INTERRUPTED), SWEEP, FINISH)
    .because(Interrupted(INT)),
    history("elsewhere a SIGINT that we did not send is a failure", workers(1))
    .when(started(0), killed(0, INT))
    .then(collect(0), SWEEP),
    history("an exit code of its own is the worker's answer to Ctrl-C", workers(1, foreground=True))
    .when(started(0), exited(0, 1))
    .then(collect(0), SWEEP),
    history("Ctrl-Z stops us together with the worker", workers(1, foreground=True))
    .when(started(0), stopped(0))
    .then(PAUSE)
    .when(got(signal.SIGCONT))
    .then(RESUME),
    history("without a terminal a stopped worker belongs to a debugger", workers(1)).when(
        started(0), stopped(0)
    ),
]

EXTERNAL_CAUSES = [
    history("without a reader of our output the job ends in order", workers(2, restarts=1))
    .when(started(0), started(1), READER_GONE)
    .then(PrintNotice(OUTPUT_CLOSED), hand_on(TERM, 0, 1))
    .when(killed(0, TERM), killed(1, signal.SIGPIPE), printed(0), printed(1), swept())
    .then(collect(0), collect(1), SWEEP, FINISH)
    .because(OutputGone()),
    history("a reader that goes after a failure is not the cause", workers(2))
    .when(started(0), started(1), exited(0, 1), READER_GONE)
    .then(collect(0), ask(1)),
    history("without a relay the job ends in order", workers(2, restarts=1))
    .when(started(0), started(1), RELAY_LOST)
    .then(ask(0, 1))
    .when(exited(0), exited(1), printed(0), printed(1), swept())
    .then(collect(0), collect(1), SWEEP, FINISH)
    .because(HelperFailed("relay", "exited with code 1", 0)),
    history("the workers die with the fork server", workers(2, restarts=1))
    .when(started(0), FORK_SERVER_LOST)
    .then(collect(0, 1), SWEEP)
    .when(swept(), printed(0), printed(1))
    .then(LAST_WORDS, FINISH)
    .because(HelperFailed("fork server", "was killed by SIGKILL", KILL)),
]

FAILED_ELSEWHERE = "rank 3 on node9 failed"

OTHER_NODES = [
    history("a node that is done receives the verdict", workers(1, shared=True))
    .when(started(0), exited(0), swept(), printed(0))
    .then(collect(0), SWEEP, LAST_WORDS, REPORT_END)
    .when(TIME_IS_UP)
    .when(verdict(Succeeded()))
    .then(FINISH),
    history("the others hear of a failure before anything else is done", workers(2, shared=True))
    .when(started(0), started(1), exited(1, 3))
    .then(report_failure(1), collect(1), ask(0))
    .when(killed(0, TERM), printed(0), printed(1), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(verdict(OutputGone()))
    .then(FINISH),
    history("and of one failure only", workers(2, shared=True))
    .when(started(0), started(1), exited(1, 3))
    .then(report_failure(1), collect(1), ask(0))
    .when(exited(0, 1))
    .then(collect(0), SWEEP),
    history("the others hear of a signal to end", workers(1, shared=True))
    .when(started(0), got(TERM))
    .then(report_interrupted(TERM), PrintNotice(stopping(TERM, 1, GRACE)), hand_on(TERM, 0))
    .because(Interrupted(TERM)),
    history("the end of another node is ours", workers(1, shared=True))
    .when(started(0), ordered(FAILED_ELSEWHERE))
    .then(PrintNotice(stopping_here(FAILED_ELSEWHERE, 1)), ask(0))
    .when(killed(0, TERM), printed(0), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(verdict(Interrupted(TERM)))
    .then(FINISH),
    history("an order that comes late finds it done", workers(2, shared=True))
    .when(started(0), started(1), exited(0, 1))
    .then(report_failure(0), collect(0), ask(1))
    .when(ordered(FAILED_ELSEWHERE)),
    history("a part of the job does not train on alone", workers(1, shared=True))
    .when(started(0), NODE_0_LOST)
    .then(PrintNotice(stopping_here("node 0 (node0) is gone", 1)), ask(0))
    .when(killed(0, TERM), printed(0), swept())
    .then(collect(0), SWEEP, FINISH)
    .because(NodeLost(0, "node0")),
    history("node 0 is lost to the signal that ends the job", workers(1, shared=True))
    .when(started(0), ordered("n0 got SIGTERM", external_cause=Interrupted(TERM)))
    .then(PrintNotice(stopping_here("n0 got SIGTERM", 1)), ask(0))
    .when(NODE_0_LOST, killed(0, TERM), printed(0), swept())
    .then(collect(0), SWEEP, FINISH)
    .because(Interrupted(TERM)),
    history("also where a worker failed before the order", workers(1, shared=True))
    .when(started(0), exited(0, 1), ordered("n0 got SIGTERM", external_cause=Interrupted(TERM)))
    .then(report_failure(0), collect(0), SWEEP)
    .when(NODE_0_LOST, printed(0), swept())
    .then(FINISH)
    .because(Interrupted(TERM)),
    history("without node 0 there is no verdict to wait for", workers(1, shared=True))
    .when(started(0), exited(0), printed(0), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(NODE_0_LOST)
    .then(FINISH)
    .because(NodeLost(0, "node0")),
    history("a signal to a node that is done ends the job on the others", workers(1, shared=True))
    .when(started(0), exited(0), printed(0), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(got(TERM))
    .then(report_interrupted(TERM), PrintNotice(stopping_others(TERM)))
    .when(got(TERM, at=10.5))
    .when(verdict(Interrupted(TERM)))
    .then(FINISH)
    .because(Interrupted(TERM)),
    history("a second signal ends the wait for the others", workers(1, shared=True))
    .when(started(0), exited(0), printed(0), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(got(INT, at=10.0))
    .then(report_interrupted(INT), PrintNotice(stopping_others(INT)))
    .when(got(INT, at=10.1))
    .when(got(INT, at=11.1))
    .then(FINISH)
    .because(Interrupted(INT)),
    history("a signal while it stops is for the coordinator to judge", workers(2, shared=True))
    .when(started(0), started(1), exited(1, 3))
    .then(report_failure(1), collect(1), ask(0))
    .when(got(TERM), got(TERM, at=11.5))
    .then(report_interrupted(TERM), kill(0))
    .because(Interrupted(TERM)),
    history("all nodes begin anew together", workers(2, shared=True, restarts=1))
    .when(started(0), started(1), exited(1, 3))
    .then(report_failure(1), collect(1), ask(0))
    .when(killed(0, TERM), printed(0), printed(1), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(again(Succeeded()))
    .then(RESTART),
    history("an order to begin anew while workers run", workers(1, shared=True, restarts=1))
    .when(started(0), again(Succeeded()))
    .then()
    .when(exited(0), printed(0), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(verdict(Succeeded()))
    .then(FINISH),
    history("no node restarts on its own", workers(1, shared=True, restarts=1))
    .when(started(0), exited(0, 3), printed(0), swept())
    .then(report_failure(0), collect(0), SWEEP, REPORT_END)
    .when(NODE_0_LOST)
    .then(FINISH)
    .because(NodeLost(0, "node0")),
    history("a signal that crosses the order to begin anew", workers(1, shared=True, restarts=1))
    .when(started(0), exited(0), printed(0), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(got(TERM), again(Succeeded()))
    .then(
        report_interrupted(TERM), PrintNotice(stopping_others(TERM)), decline(1, Interrupted(TERM))
    )
    .when(verdict(Interrupted(TERM)))
    .then(FINISH)
    .because(Interrupted(TERM)),
    history("no node restarts without a fork server", workers(1, shared=True, restarts=1))
    .when(started(0), exited(0), printed(0), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(FORK_SERVER_LOST)
    .when(again(Succeeded()))
    .then(decline(1, HelperFailed("fork server", "was killed by SIGKILL", KILL)))
    .because(HelperFailed("fork server", "was killed by SIGKILL", KILL)),
    history("which a node that is done does not need", workers(1, shared=True))
    .when(started(0), exited(0), printed(0), swept())
    .then(collect(0), SWEEP, REPORT_END)
    .when(FORK_SERVER_LOST, verdict(Succeeded()))
    .then(FINISH),
    history("an order of another attempt is none", workers(1, shared=True)).when(
        started(0), ordered(FAILED_ELSEWHERE, attempt=1)
    ),
    history(
        "a verdict that comes early says that the others go on without us", workers(1, shared=True)
    )
    .when(started(0), ordered(FAILED_ELSEWHERE), verdict(NodeLost(1, "node1", "was silent")))
    .then(PrintNotice(stopping_here(FAILED_ELSEWHERE, 1)), ask(0))
    .when(killed(0, TERM), printed(0), swept())
    .then(collect(0), SWEEP, FINISH),
    history("a signal after a success here is for the other nodes", workers(1, shared=True))
    .when(started(0), exited(0))
    .then(collect(0), SWEEP)
    .when(got(TERM))
    .then(report_interrupted(TERM), PrintNotice(stopping_others(TERM)))
    .because(Interrupted(TERM)),
    history("even if that is all that it says", workers(1, shared=True))
    .when(started(0), verdict(NodeLost(1, "node1", "was silent")))
    .then(PrintNotice(stopping_here(LOST_BY_OTHERS, 1)), ask(0)),
]


@pytest.mark.parametrize(
    "past",
    [*SUCCESS, *FAILURE, *RESTARTS, *SIGNALS, *TERMINAL, *EXTERNAL_CAUSES, *OTHER_NODES],
    ids=str,
)
def test_history(past: History) -> None:
    """The policy answers the events as the history says, with the same external cause."""
    assert past.as_decided() == past.steps
    assert external_cause_of(past.last_state()) == past.external_cause


def test_every_event_is_decided_on() -> None:
    """Also one that is added later; what belongs to a look changes nothing."""
    assert Attempt.HANDLERS.keys() == set(get_args(Event)) - set(get_args(LookEvent))
