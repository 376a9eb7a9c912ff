"""The clock of the operating system."""

import time


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000
