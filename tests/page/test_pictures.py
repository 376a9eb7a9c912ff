"""The screenshots of the page in the README; `make pictures` updates them."""

import os
from itertools import islice
from pathlib import Path

import httpx
from playwright.sync_api import expect

from laurels.cli.simulation import Simulation
from support.browser import Open, weekly
from support.calls import NewBoard


def test_screenshots_of_a_board_are_written(
    api: httpx.Client, visit: Open, new_board: NewBoard, tmp_path: Path
) -> None:
    folder = Path(os.environ.get("LAURELS_PICTURES", tmp_path))
    folder.mkdir(exist_ok=True)
    board = new_board(
        name="Autumn Arena",
        public=True,
        rule="increment",
        windows=[weekly(), "daily", "all"],
        segments=["global", "region"],
    )
    simulation = Simulation(300, 11)
    totals: dict[str, int] = {}
    for play in islice(simulation.plays(adds=True, before={}), 8000):
        totals[play.user_id] = totals.get(play.user_id, 0) + play.points
    profiles = [
        {"userId": player.user_id, "displayName": player.name, "region": player.region} for player in simulation.players
    ]
    assert api.post("/api/v1/users", params={"podId": "default"}, json={"users": profiles}).status_code == 200
    scores = [{"userId": user, "score": score} for user, score in totals.items()]
    assert api.post(f"/api/v1/leaderboards/{board}/scores", json={"scores": scores}).status_code == 200

    best = sorted(totals, key=lambda user: -totals[user])
    me, other = best[9], best[12]
    wide = visit(f"/boards/{board}?me={me}", viewport={"width": 1280, "height": 1000})
    small = visit(
        f"/boards/{board}",
        viewport={"width": 400, "height": 860},
        color_scheme="dark",
        locale="ko-KR",
        device_scale_factor=1.5,
    )
    expect(wide.locator(".own .row.mine")).to_be_visible()
    expect(small.locator(".ranking .rows .row").first).to_be_visible()
    expect(wide.locator(".plot .own-text")).to_be_visible()
    # Change some ranks, so that the screenshots show movement.
    for user, above in ((me, best[6]), (other, best[10])):
        more = totals[above] - totals[user] + 1
        assert api.put(f"/api/v1/leaderboards/{board}/users/{user}", json={"score": more}).status_code == 200
    expect(wide.locator(".own .row.mine .change")).to_contain_text("▲")
    # Wait until the rows have reached their positions.
    wide.wait_for_timeout(1000)
    for page, name in ((wide, "board.png"), (small, "phone.png")):
        page.screenshot(path=folder / name, animations="disabled")
        assert (folder / name).stat().st_size > 20_000
