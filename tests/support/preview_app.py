"""A small HTTP server for tests of previews, which runs inside a sandbox with the Python there: ``python3 -c SOURCE PORT [ADDRESS]``.

It answers HTTP/1.1 by hand, so that it can also send what no library would.
"""

from __future__ import annotations

SOURCE = r"""
import asyncio, base64, hashlib, json, sys

RAW = {
    "/raw/injected": b"HTTP/1.1 200 OK\r\nX-A: b\x0bc\r\nContent-Length: 0\r\n\r\n",
    "/raw/lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "/raw/both": b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "/raw/nonsense": b"SSH-2.0-OpenSSH\r\n",
    "/raw/status": b"HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n",
    "/raw/switch": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: evil\r\n\r\n",
    "/raw/silent": b"",
    "/raw/head": b"HTTP/1.1 200 OK\r\n" + b"X-Long: " + b"a" * 70000 + b"\r\n\r\n",
    "/raw/hints": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" * 5000 + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    "/raw/fold": b"HTTP/1.1 200 OK\r\nX-A: b\r\n c: d\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "/raw/many": b"HTTP/1.1 200 OK\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(300)) + b"Content-Length: 0\r\n\r\n",
    "/raw/short": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort",
    "/raw/twice": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged",
    "/raw/interim": b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "/raw/until-end": b"HTTP/1.1 200 OK\r\n\r\nto the end",
    "/raw/fields": (
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: X-Private\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n"
        b"Set-Cookie: a=1; Domain=preview.localhost; Path=/\r\nSet-Cookie: holdfast-preview=forged\r\nSet-Cookie: b=2\r\n"
        b'Clear-Site-Data: "cookies"\r\nStrict-Transport-Security: max-age=9\r\nAlt-Svc: h3=":1"\r\n'
        b"X-Holdfast-Ticket: x\r\nX-Own: yes\r\n\r\nok"
    ),
    "/raw/redirect": b"HTTP/1.1 302 Found\r\nLocation: http://localhost:%PORT%/next?a=b\r\nContent-Length: 0\r\n\r\n",
    "/raw/away": b"HTTP/1.1 302 Found\r\nLocation: https://example.org/\r\nContent-Length: 0\r\n\r\n",
    "/raw/trailer": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: " + b"a" * 300000,
}

async def body_of(reader, head):
    length = int(head.get("content-length", 0))
    while length > 0:
        data = await reader.read(min(length, 65536))
        if not data:
            return
        length -= len(data)
        yield data
    while head.get("transfer-encoding") == "chunked":
        size = int((await reader.readline()).split(b";")[0], 16)
        data = await reader.readexactly(size)
        await reader.readline()
        if not size:
            return
        yield data

async def websocket(reader, writer, head):
    accept = base64.b64encode(hashlib.sha1((head["sec-websocket-key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11").encode()).digest()).decode()
    protocol = head.get("sec-websocket-protocol", "").split(",")[0]
    extra = f"Sec-WebSocket-Protocol: {protocol}\r\n" if protocol else ""
    writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n")
    writer.write(f"{extra}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode())
    while True:
        first, size = await reader.readexactly(2)
        size &= 127
        if size == 126:
            size = int.from_bytes(await reader.readexactly(2), "big")
        elif size == 127:
            size = int.from_bytes(await reader.readexactly(8), "big")
        mask = await reader.readexactly(4)
        data = await reader.readexactly(size)
        number = int.from_bytes(data, "big") ^ int.from_bytes((mask * (size // 4 + 1))[:size], "big")
        data = number.to_bytes(size, "big")
        shown = bytes([size]) if size < 126 else b"\x7e" + size.to_bytes(2, "big") if size < 65536 else b"\x7f" + size.to_bytes(8, "big")
        writer.write(bytes([first]) + shown + data)
        await writer.drain()
        if first == 0x88:
            return

async def serve(reader, writer):
    try:
        while True:
            text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            line, *rows = text.split("\r\n")
            method, target, _ = line.split(" ")
            head = {}
            fields = [row.partition(": ")[::2] for row in rows if row]
            for name, value in fields:
                head[name.lower()] = value
            path = target.partition("?")[0]
            if path in RAW:
                writer.write(RAW[path].replace(b"%PORT%", sys.argv[1].encode()))
                await writer.drain()
                if path in ("/raw/twice", "/raw/fields", "/raw/interim", "/raw/redirect", "/raw/away"):
                    continue
                return
            if path == "/ws":
                await websocket(reader, writer, head)
                return
            if path == "/events":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
                for number in range(int(target.partition("?")[2] or 1000000)):
                    event = f"id: {number}\ndata: tick {number}\n\n".encode()
                    writer.write(b"%x\r\n%b\r\n" % (len(event), event))
                    await writer.drain()
                    if number:
                        await asyncio.sleep(0.05)
                writer.write(b"0\r\n\r\n")
                continue
            if path == "/source":
                left = int(target.partition("?")[2])
                writer.write(f"HTTP/1.1 200 OK\r\nContent-Length: {left}\r\n\r\n".encode())
                while left:
                    size = min(left, 65536)
                    writer.write(b"s" * size)
                    await writer.drain()
                    left -= size
                continue
            if path == "/mirror":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                async for data in body_of(reader, head):
                    writer.write(b"%x\r\n%b\r\n" % (len(data), data))
                    await writer.drain()
                writer.write(b"0\r\n\r\n")
                continue
            count = 0
            async for data in body_of(reader, head):
                count += len(data)
            shown = json.dumps({"method": method, "target": target, "fields": fields, "bytes": count}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(shown))
            if method != "HEAD":
                writer.write(shown)
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()

async def main():
    server = await asyncio.start_server(serve, sys.argv[2] if len(sys.argv) > 2 else "127.0.0.1", int(sys.argv[1]), limit=1 << 20)
    await server.serve_forever()

asyncio.run(main())
"""
