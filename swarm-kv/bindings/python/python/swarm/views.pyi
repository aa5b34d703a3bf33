from typing import NamedTuple

class Seat(NamedTuple):
    slot: int
    session: int
    ticket: int

class Holder(NamedTuple):
    seat: Seat
    token: int
    weight: int

class QueueView(NamedTuple):
    kind: str
    token: int
    holders: list[Holder]
    waiters: list[Seat]

class BarrierView(NamedTuple):
    generation: int
    members: list[Seat]
