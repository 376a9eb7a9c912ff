"""The feed within one process."""

from collections.abc import Callable

Hear = Callable[[str | None], None]


class MemoryFeed:
    def __init__(self) -> None:
        self._hearers: dict[str, list[Hear]] = {}

    async def open(self, ledger_id: str) -> None:
        pass

    async def close(self) -> None:
        pass

    async def publish(self, topic: str, message: str) -> None:
        self.tell(topic, message)

    def tell(self, topic: str, message: str) -> None:
        for hear in list(self._hearers.get(topic, ())):
            hear(message)

    def subscribe(self, topic: str, hear: Hear) -> Callable[[], None]:
        hearers = self._hearers.setdefault(topic, [])
        hearers.append(hear)

        def end() -> None:
            hearers.remove(hear)
            if not hearers:
                self._hearers.pop(topic, None)

        return end
