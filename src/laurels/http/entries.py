"""Ranking selection and entries as responses show them, shared by pages and live views."""

from collections.abc import Mapping, Sequence

from msgspec import UNSET

from laurels.core.instants import to_datetime
from laurels.http.answers import Entry
from laurels.http.queries import SelectionQuery
from laurels.ports import RankEntry
from laurels.service.people.profiles import NO_PROFILE, PublicProfile
from laurels.service.read.reads import Selection


def read_selection(query: SelectionQuery) -> Selection:
    return Selection(query.window, query.period, query.segment, query.ranking, query.viewer)


def show_entries(entries: Sequence[RankEntry], names: Mapping[str, PublicProfile]) -> list[Entry]:
    if not names:
        if entries and entries[0].subscore is None:
            # As below, faster: most boards have no subscores.
            return [Entry(each.user_id, each.rank, each.score, to_datetime(each.achieved_at)) for each in entries]
        return [show_entry(entry, NO_PROFILE) for entry in entries]
    return [show_entry(entry, names.get(entry.user_id, NO_PROFILE)) for entry in entries]


def show_entry(entry: RankEntry, named: PublicProfile) -> Entry:
    return Entry(
        user_id=entry.user_id,
        rank=entry.rank,
        score=entry.score,
        timestamp=to_datetime(entry.achieved_at),
        display_name=named.display_name or UNSET,
        avatar_url=named.avatar_url or UNSET,
        subscore=UNSET if entry.subscore is None else entry.subscore,
    )
