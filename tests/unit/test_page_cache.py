"""The cache keeps pages for one revision, up to a number of bytes."""

from laurels.http.page_cache import ENTRY_BYTES, PageCache


def test_page_is_cached_only_for_its_revision() -> None:
    cache = PageCache()
    cache.put("a", 1, b"page")
    assert cache.get("a", 1) == b"page"
    assert cache.get("a", 2) is None
    assert cache.get("b", 1) is None
    cache.put("a", 2, b"new")
    assert cache.get("a", 2) == b"new"


def test_cache_size_stays_within_max_bytes() -> None:
    cache = PageCache(max_bytes=3000)
    for number in range(1000):
        cache.put(number % 7, number, b"x" * 30)
        assert sum(ENTRY_BYTES + len(page) for _, page in cache.pages.values()) == cache.size_bytes <= 3000
        assert cache.get(number % 7, number) is not None
