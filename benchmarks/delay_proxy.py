"""A mail server far away: an IMAP proxy that holds back each command for a while.

`python -m benchmarks.delay_proxy TARGET_PORT DELAY_SECONDS` prints the port it listens on, then
serves until it is terminated. A process of its own, so that it shares no interpreter lock with
what is measured.
"""

import asyncio
import sys

HOST = "127.0.0.1"


async def serve(target_port: int, delay_seconds: float) -> None:
    """Print the port, then pass on what clients send, each command late."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(HOST, target_port)
        await asyncio.gather(
            _pass_commands(reader, server_writer, delay_seconds),
            _pass_answers(server_reader, writer),
        )

    server = await asyncio.start_server(connected, HOST, 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _pass_commands(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_seconds: float
) -> None:
    while line := await reader.readline():
        if b" " in line:  # a tag and a command; the line of a SASL answer has no space
            await asyncio.sleep(delay_seconds)
        writer.write(line)
    writer.close()


async def _pass_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), float(sys.argv[2])))
