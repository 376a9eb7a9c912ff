"""The machine's clock."""

import time


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000
