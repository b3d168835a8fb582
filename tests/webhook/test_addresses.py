"""Which addresses are public, and what a receiver says with Retry-After; pure decisions."""

import pytest

from service.loops.webhooks import (
    JITTER,
    RETRY_DELAYS_SECONDS,
    decide_delay,
)
from service.webhook import is_public

PRIVATE = """\
0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.254 127.0.0.1 127.255.255.254
169.254.0.1 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.168.0.1 198.18.0.1
198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 224.0.1.1 239.255.255.255 240.0.0.1
255.255.255.255
:: ::1 ::2 ::127.0.0.1 ::8.8.8.8 100::1 fc00::1 fdff::1 fe80::1 fe80::1%eth0 fec0::1 ff02::1
ff0e::1 2001:db8::1 2001:10::1 64:ff9b:1::1 5f00::1 4000::1
::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:7f00:1 ::ffff:0.0.0.0 ::ffff:169.254.169.254
2002:7f00:1:: 2002:a00:1::1 2002:c0a8:1::1 64:ff9b::7f00:1 64:ff9b::10.0.0.1
64:ff9b::169.254.169.254 2001:0:808:808:0:0:80ff:fffe 2001:0:a00:1:0:0:f7f7:f7f7
"""

PUBLIC = """\
1.1.1.1 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1
172.15.255.255 172.32.0.0 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255
2606:4700:4700::1111 2a00:1450::1 2001:4860:4860::8888
::ffff:8.8.8.8 2002:808:808::1 64:ff9b::8.8.8.8 2001:0:808:808:0:0:f7f7:f7f7
"""


@pytest.mark.parametrize("address", PRIVATE.split())
def test_an_address_that_is_not_of_the_public_internet(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC.split())
def test_an_address_of_the_public_internet(address: str) -> None:
    assert is_public(address)


def test_the_delays_grow_and_end() -> None:
    for attempts, delay_seconds in enumerate(RETRY_DELAYS_SECONDS):
        for _ in range(100):
            decided = decide_delay(attempts, None)
            assert decided is not None
            assert delay_seconds <= decided <= delay_seconds * (1 + JITTER)
    assert len({decide_delay(3, None) for _ in range(10)}) > 1, "no jitter"
    assert decide_delay(len(RETRY_DELAYS_SECONDS), None) is None
    assert decide_delay(len(RETRY_DELAYS_SECONDS), 5) is None


def test_the_receiver_may_ask_for_more_time() -> None:
    assert decide_delay(0, 3600) == 3600
    for less in (0, 1, -7):
        decided = decide_delay(1, less)
        assert decided is not None
        assert decided >= RETRY_DELAYS_SECONDS[1]
