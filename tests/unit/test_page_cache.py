"""Pages are kept for one revision, within a number of bytes."""

from laurels.http.page_cache import ENTRY_BYTES, PageCache


def test_a_page_is_kept_for_its_revision_only() -> None:
    cache = PageCache()
    cache.put("a", 1, b"page")
    assert cache.get("a", 1) == b"page"
    assert cache.get("a", 2) is None
    assert cache.get("b", 1) is None
    cache.put("a", 2, b"new")
    assert cache.get("a", 2) == b"new"


def test_the_bytes_are_bounded() -> None:
    cache = PageCache(max_bytes=3000)
    for number in range(1000):
        cache.put(number % 7, number, b"x" * 30)
        assert sum(ENTRY_BYTES + len(page) for _, page in cache._pages.values()) == cache._bytes <= 3000
        assert cache.get(number % 7, number) is not None
