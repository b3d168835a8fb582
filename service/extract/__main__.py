"""`python -m service.extract MEMORY_BYTES SECONDS OUTPUT_BYTES`: a child process that reads files.

It takes one file after the other from standard input and answers on standard output (`frames`), and
ends when its input does. What goes wrong beyond `ReadFailed`, memory above all, ends it, and its
parent finds the reason on standard error.
"""

import json
import os
import sys
from typing import BinaryIO

from service.errors import ReadFailed
from service.extract.document import read_document
from service.extract.frames import ANSWER, REQUEST, Kind
from service.extract.limits import allow_cpu, limit_process, peak_memory_bytes


def main() -> None:
    memory_bytes, seconds, output_bytes = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
    requests, answers = sys.stdin.buffer, _take_standard_output()
    limit_process(memory_bytes)
    _send(answers, Kind.READY, b"", is_last=False)
    is_last = False
    while not is_last and (content := _receive(requests)) is not None:
        allow_cpu(seconds)
        kind, answer = _read(content, output_bytes)
        is_last = peak_memory_bytes() > memory_bytes // 2
        _send(answers, kind, answer, is_last=is_last)
        del content, answer  # they would stay until the next file


def _take_standard_output() -> BinaryIO:
    """The answers' pipe; what a library prints goes to standard error, and never blocks there."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    if hasattr(os, "set_blocking"):
        os.set_blocking(2, False)
    return answers


def _receive(requests: BinaryIO) -> bytes | None:
    header = requests.read(REQUEST.size)
    if len(header) < REQUEST.size:
        return None
    (size,) = REQUEST.unpack(header)
    content = requests.read(size)
    return content if len(content) == size else None


def _read(content: bytes, output_bytes: int) -> tuple[Kind, bytes]:
    try:
        return Kind.RESULT, read_document(content, output_bytes)
    except ReadFailed as failure:
        return Kind.FAILURE, json.dumps([failure.code, str(failure)]).encode()


def _send(answers: BinaryIO, kind: Kind, payload: bytes, *, is_last: bool) -> None:
    answers.write(ANSWER.pack(kind, is_last, len(payload)))
    answers.write(payload)
    answers.flush()


if __name__ == "__main__":
    main()
