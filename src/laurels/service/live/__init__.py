"""Live updates: views of boards, and their subscriptions."""

from laurels.service.live.hub import LiveHub
from laurels.service.live.reader import Reader
from laurels.service.live.subscription import SubscriberAccess, Subscription
from laurels.service.live.view import (
    AroundSpec,
    Facts,
    Frame,
    FrameKind,
    PositionChange,
    State,
    TopSpec,
    View,
    ViewSpec,
)

__all__ = [
    "AroundSpec",
    "Facts",
    "Frame",
    "FrameKind",
    "LiveHub",
    "PositionChange",
    "Reader",
    "State",
    "SubscriberAccess",
    "Subscription",
    "TopSpec",
    "View",
    "ViewSpec",
]
