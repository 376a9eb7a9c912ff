"""The page as a player sees it, in a real browser against the real program."""

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Locator, Page, expect

from support.browser import NAMES, Open, fill, weekly
from support.calls import NewBoard
from support.running import ADMIN_KEY, RunningServer
from support.waiting import until

PHONE = {"viewport": {"width": 375, "height": 740}, "has_touch": True, "is_mobile": True}
WEB = Path(__file__).parents[2] / "src/laurels/web"


def put(api: httpx.Client, board: str, user: str, score: float) -> None:
    answer = api.put(f"/api/v1/leaderboards/{board}/users/{user}", json={"score": score})
    assert answer.status_code == 200, answer.text


def row(page: Page, user: str) -> Locator:
    return page.locator(f'.ranking .rows [data-user="{user}"]')


def height(page: Page) -> float:
    """Of a row."""
    box = page.locator(".ranking .measure").bounding_box()
    assert box is not None
    return box["height"]


def shows_in_the_middle(page: Page, rank: int) -> bool:
    shown: bool = page.evaluate(
        """wanted => {
          const found = document.elementFromPoint(200, innerHeight / 2)?.closest(".rows .row");
          const rank = Number(found?.querySelector(".rank").textContent.replace(",", ""));
          return Math.abs(rank - wanted) < 30 && Number(found.getAttribute("aria-rowindex")) === rank + 1;
        }""",
        rank,
    )
    return shown


def steps(page: Page) -> Locator:
    return page.locator(".podium .step .name")


def test_a_score_moves_its_row(api: httpx.Client, visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}")
    expect(page.locator("h1")).to_have_text("Autumn Arena")
    expect(page.locator(".state")).to_have_text("Live")
    expect(page.locator(".players")).to_have_text("12 players")
    expect(steps(page)).to_have_text(NAMES[:3])
    ninth = row(page, f"{arena}-8")
    expect(ninth.locator(".rank")).to_have_text("9")
    ninth.evaluate("row => { row.marked = true; }")
    put(api, arena, f"{arena}-8", 350)
    expect(ninth.locator(".rank")).to_have_text("6")
    expect(ninth.locator(".score")).to_have_text("750")
    expect(ninth.locator(".change")).to_contain_text("▲3")
    expect(row(page, f"{arena}-5").locator(".change")).to_contain_text("▼1")
    # It is the same row, which glides to its new place.
    assert ninth.evaluate("row => row.marked") is True
    expect(ninth).to_have_css("transition-property", re.compile("transform"))
    expect(ninth).to_have_css("transform", re.compile(rf", {2 * height(page):g}"))
    put(api, arena, f"{arena}-8", 10_000)
    expect(steps(page)).to_have_text([NAMES[8], NAMES[0], NAMES[1]])
    expect(ninth).to_have_count(0)


def test_a_player_is_found_and_followed(api: httpx.Client, visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}")
    page.get_by_label("Find a player").fill("no")
    page.get_by_role("button", name="Find").click()
    page.get_by_role("button", name="Follow Nova").click()
    own = page.locator(".own .rows .row")
    expect(own.locator(".name")).to_have_text(["Aria", "Haru", "Leo", "Nova", "Kai", "Sora", "Yuna"])
    expect(page.locator(".own .row.mine .name")).to_have_text("Nova")
    expect(page.locator(".place")).to_have_text("Top 50%")
    expect(page.locator("#own-title")).to_have_text("Nova")
    expect(page.locator(".plot .own-text")).to_contain_text("You are here")
    expect(row(page, f"{arena}-5")).to_have_class(re.compile("mine"))
    assert f"me={arena}-5" in page.url
    put(api, arena, f"{arena}-5", 150)
    expect(page.locator(".notice")).to_have_text("Nova is now number 5.")
    expect(page.locator(".own .row.mine .change")).to_contain_text("▲1")
    page.get_by_label("Find a player").fill("zzz")
    page.get_by_role("button", name="Find").click()
    expect(page.locator(".results")).to_have_text("No player is called “zzz” here.")
    page.get_by_role("button", name="Stop following").click()
    expect(page.locator(".own .row")).to_have_count(0)


def test_windows_segments_and_a_countdown(visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}")
    expect(page.locator(".clock")).to_have_text(re.compile(r"^Resets in (\dd )?\d\d:\d\d:\d\d$"))
    first = page.locator(".clock time").inner_text()
    expect(page.locator(".clock time")).not_to_have_text(first)
    page.get_by_role("tab", name="All time").click()
    expect(page.get_by_role("tab", name="All time")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".clock")).to_have_text("")
    page.get_by_role("tab", name="Region").click()
    expect(page.get_by_label("Which Region?").locator("option")).to_have_text(["…", "eu · 6 players", "kr · 6 players"])
    page.get_by_label("Which Region?").select_option("kr")
    expect(page.locator(".players")).to_have_text("6 players")
    expect(steps(page)).to_have_text(NAMES[0:6:2])
    assert "segment=region%3Akr" in page.url
    page.reload()
    expect(page.get_by_role("tab", name="Region: kr")).to_have_attribute("aria-selected", "true")
    expect(page.locator(".players")).to_have_text("6 players")


def test_a_reset_and_the_round_before_it(api: httpx.Client, visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}?me={arena}-0")
    expect(steps(page)).to_have_text(NAMES[:3])
    period = api.get(f"/api/v1/leaderboards/{arena}").json()["periods"][0]["period"]
    assert api.post(f"/api/v1/leaderboards/{arena}/periods/{period}/close").status_code == 200
    expect(page.locator(".notice")).to_have_text("A new round has begun.")
    expect(page.get_by_text("Nobody has a score yet. The first one leads!")).to_be_visible()
    put(api, arena, f"{arena}-4", 7)
    expect(steps(page)).to_have_text(["Leo"])
    option = page.locator("#season option", has_text=period)
    # Final some time after its end.
    expect(option).to_have_count(1, timeout=20_000)
    page.locator("#season").select_option(period)
    expect(page.locator(".state")).to_have_text(f"Final ranks · {period}")
    expect(steps(page)).to_have_text(NAMES[:3])
    expect(page.locator(".own .row.mine .rank")).to_have_text("1")
    page.locator("#season").select_option("")
    expect(steps(page)).to_have_text(["Leo"])


def test_a_server_that_was_killed_is_found_again(visit: Open, tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.client() as api:
        fill(api, "default", 8)
        page = visit("/boards/default?me=default-6", url=server.url)
        expect(page.locator(".own .row.mine .rank")).to_have_text("7")
        # All is read that is read once.
        expect(page.locator(".plot")).to_be_visible()
        page.wait_for_load_state("networkidle")
        server.kill()
        expect(page.locator(".state")).to_have_text("Reconnecting…")
        server.start()
        put(api, "default", "default-6", 900)
        expect(page.locator(".state")).to_have_text("Live")
        expect(steps(page)).to_have_text(["Kai", "Mina", "Joon"])
        expect(page.locator(".own .row.mine .rank")).to_have_text("1")
        page.close()


def test_ten_thousand_rows_of_which_few_are_in_the_page(api: httpx.Client, visit: Open, new_board: NewBoard) -> None:
    board = new_board(name="Everybody", public=True)
    fill(api, board, 10_000)
    page = visit(f"/boards/{board}")
    expect(row(page, f"{board}-3").locator(".rank")).to_have_text("4")
    for share in (0.25, 0.5, 0.75, 1):
        page.evaluate("share => scrollTo(0, share * document.documentElement.scrollHeight)", share)
        # In the middle of the window is the row that belongs there.
        middle = round(share * 10_000)
        until(partial(shows_in_the_middle, page, middle), f"rank {middle}")
        assert page.locator(".ranking .rows .row").count() < 80
    last = row(page, f"{board}-9999")
    expect(last.locator(".rank")).to_have_text("10,000")
    # What is far down is kept fresh, too.
    put(api, board, f"{board}-9998", 1000)
    expect(row(page, f"{board}-9997").locator(".rank")).to_have_text("9,999")


def test_by_keyboard_alone(visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}")
    expect(steps(page)).to_have_text(NAMES[:3])
    keys = page.keyboard
    keys.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    for _ in range(4):
        keys.press("Tab")
    expect(page.get_by_role("link", name="All leaderboards")).to_be_focused()
    keys.press("Tab")
    expect(page.get_by_role("tab", name="This week")).to_be_focused()
    keys.press("ArrowRight")
    expect(page.get_by_role("tab", name="All time")).to_be_focused()
    expect(page.get_by_role("tab", name="All time")).to_have_attribute("aria-selected", "true")
    keys.press("/")
    expect(page.get_by_label("Find a player")).to_be_focused()
    keys.type("Kai")
    keys.press("Enter")
    expect(page.get_by_role("button", name="Follow Kai")).to_be_visible()
    keys.press("Tab")
    keys.press("Tab")
    expect(page.get_by_role("button", name="Follow Kai")).to_be_focused()
    keys.press("Enter")
    expect(page.locator(".own .row.mine .name")).to_have_text("Kai")
    keys.press("End")
    until(lambda: page.evaluate("scrollY > 0"), "the end of the page")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(visit: Open, arena: str, scheme: str) -> None:
    page = visit(f"/boards/{arena}?me={arena}-5", color_scheme=scheme, **PHONE)
    expect(page.locator(".own .row.mine")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.locator(".podium").scroll_into_view_if_needed()
    expect(page.locator(".podium")).to_be_in_viewport()
    # Out of sight, one's own row is a line at the bottom.
    page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
    expect(page.locator(".own-line")).to_have_text(re.compile("^6 Nova 700$"))
    page.locator(".own-line").click()
    expect(page.locator(".own .row.mine")).to_be_in_viewport()
    expect(page.locator(".own-line")).to_be_hidden()
    light = {"light": "rgb(246, 245, 240)", "dark": "rgb(15, 20, 18)"}
    expect(page.locator("body")).to_have_css("background-color", light[scheme])
    page.get_by_role("button", name="Theme: automatic").click()
    expect(page.locator("body")).to_have_css("background-color", light["light"])
    page.get_by_role("button", name="Theme: light").click()
    expect(page.locator("body")).to_have_css("background-color", light["dark"])


@pytest.mark.parametrize(
    ("path", "context"),
    [
        ("/", {}),
        ("/", {"color_scheme": "dark", "locale": "ko-KR"}),
        ("/boards/{board}", {}),
        ("/boards/{board}?me={board}-5", {"color_scheme": "dark"}),
        ("/boards/{board}?me={board}-5&window=all", {"locale": "ko-KR", **PHONE}),
        ("/boards/{board}?wall", {"viewport": {"width": 2560, "height": 1440}}),
        ("/boards/nowhere", {}),
    ],
)
def test_nothing_for_axe_to_complain_of(visit: Open, arena: str, path: str, context: dict[str, Any]) -> None:
    # What fades in has less contrast while it does.
    page = visit(path.format(board=arena), reduced_motion="reduce", **context)
    expect(page.locator("main")).not_to_be_empty()
    if "{board}" in path:
        expect(page.locator(".ranking .rows .row").first).to_be_visible()
        expect(page.locator(".plot")).to_have_count(1)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_the_public_boards_and_no_others(visit: Open, arena: str, new_board: NewBoard) -> None:
    hidden = new_board(name="Nobody's business")
    # More than one page of them.
    for _ in range(25):
        new_board(public=True)
    page = visit("/")
    cards, more = page.locator(".card"), page.get_by_role("button", name="More leaderboards")
    expect(cards.first).to_be_visible()
    while more.is_visible():
        shown = cards.count()
        more.click()
        expect(cards).not_to_have_count(shown)
    card = page.locator(".card", has=page.locator(f'a[href="/boards/{arena}"]'))
    expect(card).to_contain_text("12 players")
    expect(card).to_contain_text("Mina")
    expect(page.locator(f'a[href="/boards/{hidden}"]')).to_have_count(0)
    card.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("Autumn Arena")


def test_a_name_is_never_more_than_a_name(api: httpx.Client, visit: Open, new_board: NewBoard) -> None:
    board = new_board(name="<b>Bold</b>", public=True)
    evil = '<img src=x onerror="document.title=1">'
    user = f"evil/{board}"
    answer = api.post(
        "/api/v1/users", params={"podId": "default"}, json={"users": [{"userId": user, "displayName": evil}]}
    )
    assert answer.status_code == 200
    put(api, board, user.replace("/", "%2F"), 5)
    page = visit(f"/boards/{board}")
    expect(steps(page)).to_have_text([evil])
    expect(page.locator("h1")).to_have_text("<b>Bold</b>")
    page.locator(".podium .pick").click()
    expect(page.locator(".own .row.mine .name")).to_have_text(evil)


def test_korean_and_whatever_is_chosen(visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}", locale="ko-KR")
    expect(page.locator(".players")).to_have_text("참가자 12명")
    expect(page.locator("html")).to_have_attribute("lang", "ko")
    page.get_by_label("언어").select_option("en")
    expect(page.locator(".players")).to_have_text("12 players")
    page.reload()
    expect(page.locator(".players")).to_have_text("12 players")


def test_every_language_says_everything(api: httpx.Client) -> None:
    files = {path.stem: json.loads(path.read_text("utf-8")) for path in (WEB / "languages").glob("*.json")}
    assert api.get("/web/languages.json").json() == {code: each["language"] for code, each in files.items()}
    assert {"en", "ko"} <= set(files)
    english = files["en"]["texts"]
    for code, each in files.items():
        # How many forms a number takes is a matter of the language.
        missing = {name for name in english if name not in each["texts"] and not name.endswith("_one")}
        assert missing == set(), code
        for name, text in each["texts"].items():
            like = english.get(name) or english[name.replace("_other", "_one")]
            assert set(re.findall(r"{\w+}", text)) <= set(re.findall(r"{\w+}", like)), (code, name)
    said = set()
    for path in WEB.glob("*.js"):
        said |= set(re.findall(r'(?<![.\w])(?:say|count|has)\("([^"]+)"', path.read_text("utf-8")))
    assert {name for name in said if name not in english and f"{name}_other" not in english} == set()
    # And nothing that nobody says; some names are put together.
    page = "".join(path.read_text("utf-8") for path in (*WEB.glob("*.js"), WEB / "index.html"))
    made = ("status.", "window.", "theme.", "segment.")
    names = {re.sub("_(one|other)$", "", name) for name in english if not name.startswith(made)}
    assert {name for name in names if f'"{name}"' not in page} == set()


def test_files_say_what_they_are_and_are_asked_for_once(server: RunningServer, api: httpx.Client) -> None:
    first = api.get("/web/main.js")
    assert (first.status_code, first.headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    again = api.get("/web/main.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "default-src 'none'" in api.get("/").headers["Content-Security-Policy"]
    assert api.get("/web/../config.py").status_code == 404
    assert httpx.get(f"{server.url}/web/%2e%2e/config.py").status_code == 404
    assert httpx.get(server.url, headers={"X-API-Key": ADMIN_KEY}).status_code == 200


def test_a_round_that_ended_during_a_break_is_listed(visit: Open, tmp_path: Path) -> None:
    body = {"UUID": "rounds", "podId": "default", "name": "Rounds", "public": True, "windows": [weekly()]}
    path = "/api/v1/leaderboards/rounds"
    with RunningServer(tmp_path) as server:
        with server.client() as api:
            assert api.post("/api/v1/leaderboards", json=body | {"graceSeconds": 0}).status_code == 201
            fill(api, "rounds", 4)
        page = visit("/boards/rounds", url=server.url)
        expect(page.locator(".seasons")).to_contain_text("No round has ended yet")
        server.kill()
        expect(page.locator(".state")).to_have_text("Reconnecting…")
        # Meanwhile the same boards are served where the page does not look.
        with RunningServer(tmp_path) as elsewhere, elsewhere.client() as api:
            name = api.get(path).json()["periods"][0]["period"]
            assert api.post(f"{path}/periods/{name}/close").status_code == 200
            until(lambda: "FINAL" in api.get(path + "/periods").text, "the final ranks")
        server.start()
        expect(page.locator("#season option")).to_have_count(2)
        page.close()


def test_all_rows_of_a_very_tall_screen_are_kept_fresh(api: httpx.Client, visit: Open, new_board: NewBoard) -> None:
    """More of them are seen at once than are told of live."""
    board = new_board(name="Tall", public=True)
    fill(api, board, 130)
    page = visit(f"/boards/{board}", viewport={"width": 1000, "height": 9000})
    expect(row(page, f"{board}-120").locator(".rank")).to_have_text("121")
    put(api, board, f"{board}-129", 1050)
    expect(row(page, f"{board}-129").locator(".rank")).to_have_text("121")
    expect(row(page, f"{board}-128").locator(".rank")).to_have_text("130")


def test_a_new_name_is_new_everywhere(api: httpx.Client, visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}")
    expect(steps(page)).to_have_text(NAMES[:3])
    for number, element in ((0, page.locator(".podium li").first), (4, row(page, f"{arena}-4"))):
        expect(element.locator(".face")).to_have_text(NAMES[number][0])
        profile = {"displayName": f"Zed{number}"}
        assert api.patch(f"/api/v1/users/{arena}-{number}?podId=default", json=profile).status_code == 200
        put(api, arena, f"{arena}-{number}", 1)
        expect(element.locator(".name")).to_have_text(f"Zed{number}")
        expect(element.locator(".face")).to_have_text("Z")
        expect(element.locator("button")).to_have_attribute("title", f"Follow Zed{number}")


@pytest.mark.parametrize("asked", ["{tag}", "W/{tag}", '"other", W/{tag}', '"other",{tag}', "*"])
def test_a_file_that_is_known_is_not_sent_again(api: httpx.Client, asked: str) -> None:
    tag = api.get("/web/main.js").headers["ETag"]
    known = api.get("/web/main.js", headers={"If-None-Match": asked.format(tag=tag)})
    assert (known.status_code, known.content, known.headers["ETag"]) == (304, b"", tag)
    for other in ('"other"', f'W/"{tag[1:-2]}"', ""):
        assert api.get("/web/main.js", headers={"If-None-Match": other}).status_code == 200


def test_an_event_source_outlasts_a_server_that_loads(visit: Open, tmp_path: Path) -> None:
    """A browser gives up for good on an answer other than 200."""
    with RunningServer(tmp_path) as server:
        page = visit("/", url=server.url)
        page.evaluate(
            """() => {
                window.seen = [];
                const source = new EventSource("/api/v1/leaderboards/default/stream");
                for (const kind of ["snapshot", "problem"]) source.addEventListener(kind, () => seen.push(kind));
            }"""
        )
        until(lambda: page.evaluate("seen.includes('snapshot')"), "a snapshot")
        # What a server that still loads answers.
        busy = "event: problem\ndata: {}\n\n"
        page.route("**/stream", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=busy))
        assert server.terminate() == 0
        server.start()
        until(lambda: page.evaluate("seen.includes('problem')"), "a problem")
        page.unroute("**/stream")
        page.evaluate("seen.length = 0")
        until(lambda: page.evaluate("seen.includes('snapshot')"), "another snapshot")
        page.close()
