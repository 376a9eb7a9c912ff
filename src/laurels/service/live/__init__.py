"""Boards as they change: views that are looked after, and those who look at them."""

from laurels.service.live.hub import LiveHub
from laurels.service.live.reader import Reader
from laurels.service.live.subscription import Audience, Subscription
from laurels.service.live.view import Change, Facts, Frame, Kind, Look, LookAround, LookTop, State, View

__all__ = [
    "Audience",
    "Change",
    "Facts",
    "Frame",
    "Kind",
    "LiveHub",
    "Look",
    "LookAround",
    "LookTop",
    "Reader",
    "State",
    "Subscription",
    "View",
]
