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
    """Return the height of a row."""
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


def test_new_score_moves_the_row_of_the_player(api: httpx.Client, visit: Open, arena: str) -> None:
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
    # It is the same element, which moves to its new position.
    assert ninth.evaluate("row => row.marked") is True
    expect(ninth).to_have_css("transition-property", re.compile("transform"))
    expect(ninth).to_have_css("transform", re.compile(rf", {2 * height(page):g}"))
    put(api, arena, f"{arena}-8", 10_000)
    expect(steps(page)).to_have_text([NAMES[8], NAMES[0], NAMES[1]])
    expect(ninth).to_have_count(0)


def test_player_can_be_found_and_followed(api: httpx.Client, visit: Open, arena: str) -> None:
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


def test_page_switches_windows_and_segments_and_shows_a_countdown(visit: Open, arena: str) -> None:
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


def test_page_shows_a_reset_and_the_previous_period(api: httpx.Client, visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}?me={arena}-0")
    expect(steps(page)).to_have_text(NAMES[:3])
    period = api.get(f"/api/v1/leaderboards/{arena}").json()["periods"][0]["period"]
    assert api.post(f"/api/v1/leaderboards/{arena}/periods/{period}/close").status_code == 200
    expect(page.locator(".notice")).to_have_text("A new round has begun.")
    expect(page.get_by_text("Nobody has a score yet. The first one leads!")).to_be_visible()
    put(api, arena, f"{arena}-4", 7)
    expect(steps(page)).to_have_text(["Leo"])
    option = page.locator("#season option", has_text=period)
    # A period becomes final some time after its end.
    expect(option).to_have_count(1, timeout=20_000)
    page.locator("#season").select_option(period)
    expect(page.locator(".state")).to_have_text(f"Final ranks · {period}")
    expect(steps(page)).to_have_text(NAMES[:3])
    expect(page.locator(".own .row.mine .rank")).to_have_text("1")
    page.locator("#season").select_option("")
    expect(steps(page)).to_have_text(["Leo"])


def test_page_reconnects_to_a_restarted_server(visit: Open, tmp_path: Path) -> None:
    with RunningServer(tmp_path) as server, server.client() as api:
        fill(api, "default", 8)
        page = visit("/boards/default?me=default-6", url=server.url)
        expect(page.locator(".own .row.mine .rank")).to_have_text("7")
        # Wait until the page has loaded everything that it loads once.
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


def test_page_renders_only_visible_rows_of_a_large_board(api: httpx.Client, visit: Open, new_board: NewBoard) -> None:
    board = new_board(name="Everybody", public=True)
    fill(api, board, 10_000)
    page = visit(f"/boards/{board}")
    expect(row(page, f"{board}-3").locator(".rank")).to_have_text("4")
    for share in (0.25, 0.5, 0.75, 1):
        page.evaluate("share => scrollTo(0, share * document.documentElement.scrollHeight)", share)
        # The middle of the window shows the row that belongs there.
        middle = round(share * 10_000)
        until(partial(shows_in_the_middle, page, middle), f"rank {middle}")
        assert page.locator(".ranking .rows .row").count() < 80
    last = row(page, f"{board}-9999")
    expect(last.locator(".rank")).to_have_text("10,000")
    # Rows far down are updated, too.
    put(api, board, f"{board}-9998", 1000)
    expect(row(page, f"{board}-9997").locator(".rank")).to_have_text("9,999")


def test_page_is_usable_by_keyboard_alone(visit: Open, arena: str) -> None:
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
def test_page_fits_a_phone_without_horizontal_scrolling(visit: Open, arena: str, scheme: str) -> None:
    page = visit(f"/boards/{arena}?me={arena}-5", color_scheme=scheme, **PHONE)
    expect(page.locator(".own .row.mine")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.locator(".podium").scroll_into_view_if_needed()
    expect(page.locator(".podium")).to_be_in_viewport()
    # A line at the bottom shows the player's own row when it is out of sight.
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
def test_axe_finds_no_accessibility_violations(visit: Open, arena: str, path: str, context: dict[str, Any]) -> None:
    # Disable animations, because elements have less contrast while they fade in.
    page = visit(path.format(board=arena), reduced_motion="reduce", **context)
    expect(page.locator("main")).not_to_be_empty()
    if "{board}" in path:
        expect(page.locator(".ranking .rows .row").first).to_be_visible()
        expect(page.locator(".plot")).to_have_count(1)
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_home_page_lists_only_public_boards(visit: Open, arena: str, new_board: NewBoard) -> None:
    hidden = new_board(name="Nobody's business")
    # More boards than one page shows.
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


def test_html_in_names_is_shown_as_text(api: httpx.Client, visit: Open, new_board: NewBoard) -> None:
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


def test_page_uses_the_locale_until_a_language_is_chosen(visit: Open, arena: str) -> None:
    page = visit(f"/boards/{arena}", locale="ko-KR")
    expect(page.locator(".players")).to_have_text("참가자 12명")
    expect(page.locator("html")).to_have_attribute("lang", "ko")
    page.get_by_label("언어").select_option("en")
    expect(page.locator(".players")).to_have_text("12 players")
    page.reload()
    expect(page.locator(".players")).to_have_text("12 players")


def test_every_language_has_all_texts_and_none_is_unused(api: httpx.Client) -> None:
    files = {path.stem: json.loads(path.read_text("utf-8")) for path in (WEB / "languages").glob("*.json")}
    assert api.get("/web/languages.json").json() == {code: each["language"] for code, each in files.items()}
    assert {"en", "ko"} <= set(files)
    english = files["en"]["texts"]
    for code, each in files.items():
        # Languages have different plural forms.
        missing = {name for name in english if name not in each["texts"] and not name.endswith("_one")}
        assert missing == set(), code
        for name, text in each["texts"].items():
            like = english.get(name) or english[name.replace("_other", "_one")]
            assert set(re.findall(r"{\w+}", text)) <= set(re.findall(r"{\w+}", like)), (code, name)
    said = set()
    for path in WEB.glob("*.js"):
        said |= set(re.findall(r'(?<![.\w])(?:say|count|has)\("([^"]+)"', path.read_text("utf-8")))
    assert {name for name in said if name not in english and f"{name}_other" not in english} == set()
    # No text is unused, except for those whose names are built at run time.
    page = "".join(path.read_text("utf-8") for path in (*WEB.glob("*.js"), WEB / "index.html"))
    made = ("status.", "window.", "theme.", "segment.")
    names = {re.sub("_(one|other)$", "", name) for name in english if not name.startswith(made)}
    assert {name for name in names if f'"{name}"' not in page} == set()


def test_web_files_have_content_type_etag_and_security_policy(server: RunningServer, api: httpx.Client) -> None:
    first = api.get("/web/main.js")
    assert (first.status_code, first.headers["Content-Type"]) == (200, "text/javascript; charset=utf-8")
    again = api.get("/web/main.js", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert "default-src 'none'" in api.get("/").headers["Content-Security-Policy"]
    assert api.get("/web/../config.py").status_code == 404
    assert httpx.get(f"{server.url}/web/%2e%2e/config.py").status_code == 404
    assert httpx.get(server.url, headers={"X-API-Key": ADMIN_KEY}).status_code == 200


def test_period_that_ended_while_disconnected_is_listed(visit: Open, tmp_path: Path) -> None:
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
        # Meanwhile a server on another port serves the same boards.
        with RunningServer(tmp_path) as elsewhere, elsewhere.client() as api:
            name = api.get(path).json()["periods"][0]["period"]
            assert api.post(f"{path}/periods/{name}/close").status_code == 200
            until(lambda: "FINAL" in api.get(path + "/periods").text, "the final ranks")
        server.start()
        expect(page.locator("#season option")).to_have_count(2)
        page.close()


def test_incomplete_responses_cause_no_errors_on_the_page(visit: Open, arena: str) -> None:
    """As from a server that is killed while it responds."""
    page = visit("/")
    for call in ("periods", "distribution", "regions"):
        page.route(f"**/{arena}/{call}?*", lambda route: route.fulfill(content_type="application/json", body='{"a": ['))
    page.goto(f"/boards/{arena}")
    expect(steps(page)).to_have_text(NAMES[:3])
    with page.expect_response("**/distribution?*"):
        page.reload()
    expect(steps(page)).to_have_text(NAMES[:3])


def test_all_visible_rows_of_a_tall_screen_are_updated(api: httpx.Client, visit: Open, new_board: NewBoard) -> None:
    """More rows are visible at once than live updates cover."""
    board = new_board(name="Tall", public=True)
    fill(api, board, 130)
    page = visit(f"/boards/{board}", viewport={"width": 1000, "height": 9000})
    expect(row(page, f"{board}-120").locator(".rank")).to_have_text("121")
    put(api, board, f"{board}-129", 1050)
    expect(row(page, f"{board}-129").locator(".rank")).to_have_text("121")
    expect(row(page, f"{board}-128").locator(".rank")).to_have_text("130")


def test_changed_display_name_is_shown_everywhere(api: httpx.Client, visit: Open, arena: str) -> None:
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
def test_web_file_with_a_matching_etag_is_not_sent_again(api: httpx.Client, asked: str) -> None:
    tag = api.get("/web/main.js").headers["ETag"]
    known = api.get("/web/main.js", headers={"If-None-Match": asked.format(tag=tag)})
    assert (known.status_code, known.content, known.headers["ETag"]) == (304, b"", tag)
    for other in ('"other"', f'W/"{tag[1:-2]}"', ""):
        assert api.get("/web/main.js", headers={"If-None-Match": other}).status_code == 200


def test_event_source_reconnects_while_the_server_loads(visit: Open, tmp_path: Path) -> None:
    """A browser's EventSource gives up for good after an answer other than 200."""
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
        # The answer of a server that is still loading.
        busy = "event: problem\ndata: {}\n\n"
        page.route("**/stream", lambda route: route.fulfill(status=200, content_type="text/event-stream", body=busy))
        assert server.terminate() == 0
        server.start()
        until(lambda: page.evaluate("seen.includes('problem')"), "a problem")
        page.unroute("**/stream")
        page.evaluate("seen.length = 0")
        until(lambda: page.evaluate("seen.includes('snapshot')"), "another snapshot")
        page.close()
