"""Who holds an object and who waits for it."""

from typing import NamedTuple


class Seat(NamedTuple):
    """A place in an object: the client's slot in the pool, its session, which no other client ever has, and which of its places."""

    slot: int
    session: int
    ticket: int


class Holder(NamedTuple):
    """Who holds an object: its place, its token, and how much of it: permits, of a readers-writer lock 1 to read and 32 to write."""

    seat: Seat
    token: int
    weight: int


class QueueView(NamedTuple):
    """Who holds an object, the smallest token first, and who waits, in order of arrival; the last token that was given out."""

    kind: str
    token: int
    holders: list
    waiters: list


class BarrierView(NamedTuple):
    """Who is to meet at a barrier, and how often it has opened."""

    generation: int
    members: list


def queue_view(parts):
    kind, token, holders, waiters = parts
    holders = [Holder(Seat(*seat), token, weight) for seat, token, weight in holders]
    return QueueView(kind, token, holders, [Seat(*seat) for seat in waiters])


def barrier_view(parts):
    generation, members = parts
    return BarrierView(generation, [Seat(*seat) for seat in members])
