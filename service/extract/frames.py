"""How a reader and its parent speak over two pipes: a header, then so many bytes.

Requests are a length and a file. Answers are what they are, whether the reader ends after it, a
length, and JSON: of the result, or `[code, sentence]` of a file that gives nothing.
"""

from enum import IntEnum
from struct import Struct

REQUEST = Struct("!I")
ANSWER = Struct("!B?I")
# What a result may have beyond its limit: warnings, names and brackets.
ANSWER_OVERHEAD_BYTES = 128 * 1024
# With its header it fits into an empty pipe.
SENT_AHEAD_MAX_BYTES = 60 * 1024


class Kind(IntEnum):
    """What an answer is."""

    READY = 0
    RESULT = 1
    FAILURE = 2
