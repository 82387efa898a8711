"""The members of a job, found by connection, node rank, agent or host."""

from collections.abc import Iterable

from msgspec import Struct, field

from clusterrun.domain.messages import Hello

OWN = 0
"""The connection of node 0's own agent."""


class Members(Struct):
    """Each step takes the same time, however many members there are."""

    hellos: dict[int, Hello]
    """By connection, in the order of joining."""
    by_rank: dict[int, int]
    """The connections of the members that were started with a node rank."""
    _by_agent: dict[str, int] = field(default_factory=dict)
    _by_host: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    _addresses: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.hellos)

    def has_joined(self, connection: int) -> bool:
        """Return whether this is a member other than node 0's own agent."""
        return connection in self.hellos and connection != OWN

    def add(self, connection: int, hello: Hello, address: str, *, takes_rank: bool = True) -> None:
        """Add a member; in a job that runs, a newcomer takes no rank before it gets a place."""
        self.hellos[connection] = hello
        if hello.rank is not None and takes_rank:
            self.by_rank[hello.rank] = connection
        self._by_agent[hello.identity] = connection
        self._by_host.setdefault((address, hello.host), []).append(connection)
        self._addresses[connection] = address

    def remove(self, connection: int) -> Hello:
        hello = self.hellos.pop(connection)
        if hello.rank is not None and self.by_rank.get(hello.rank) == connection:
            del self.by_rank[hello.rank]
        self._by_agent.pop(hello.identity, None)
        address = self._addresses.pop(connection, "")
        if connection in self._by_host.get((address, hello.host), ()):
            self._by_host[address, hello.host].remove(connection)
        return hello

    def address(self, connection: int) -> str:
        """Return where a member connects from; "" for the coordinator's own agent."""
        return self._addresses.get(connection, "")

    def of_agent(self, identity: str) -> int | None:
        """Return the connection of the member with this ``Hello.identity``; never node 0's own."""
        return self._by_agent.get(identity)

    def rivals(self, hello: Hello, address: str) -> Iterable[int]:
        """Return the members on the newcomer's host whose place the newcomer could have.

        The address that a member connects from must be the same, too: anyone can claim any name.
        """
        there = self._by_host.get((address, hello.host), ())
        if hello.rank is None:
            return there
        return (each for each in there if self.hellos[each].rank == hello.rank)

    def finish_joining(self) -> None:
        """Drop what only joining needs."""
        self._by_agent, self._by_host = {}, {}
