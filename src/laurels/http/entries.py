"""Which ranking is meant, and how a place in it is shown: the same for a page and for a live view."""

from msgspec import UNSET

from laurels.core.instants import to_datetime
from laurels.http.answers import Entry
from laurels.http.requests import SelectionQuery
from laurels.ports import Place
from laurels.service.people import Named
from laurels.service.reads import Selection


def read_selection(query: SelectionQuery) -> Selection:
    return Selection(query.window, query.period, query.segment, query.ranking, query.viewer)


def show_entry(place: Place, named: Named) -> Entry:
    return Entry(
        user_id=place.user_id,
        rank=place.rank,
        score=place.score,
        timestamp=to_datetime(place.achieved_at),
        display_name=named.display_name or UNSET,
        avatar_url=named.avatar_url or UNSET,
    )
