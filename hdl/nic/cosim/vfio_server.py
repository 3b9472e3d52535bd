"""A server of vfio-user for one client: messages in, an access to the device or to the client's memory out.

    client ── Unix socket ── messages ──> Server.serve ──> Card of us_card.py: BARs, configuration space, interrupts, reset
                 └─ descriptors: its memory (DMA_MAP), its eventfds (SET_IRQS)

The messages are those that the driver sends (vfio-user 0.9, host order): header {id u16, command u16, size u32, flags u32,
error u32}, body, perhaps descriptors. Nothing blocks: a message that is not there yet is looked for again, and the
simulation goes on meanwhile. A message that is not understood is refused, and kept for the test to see.
"""

import errno
import socket
import struct

HEADER = struct.Struct("=HHIII")
REPLY, NO_REPLY, ERROR = 1, 1 << 4, 1 << 5
VERSION, MAP, UNMAP, DEVICE_INFO, IRQ_INFO, SET_IRQS, READ, WRITE, RESET = 1, 2, 3, 4, 7, 8, 9, 10, 13
CONFIG, MSIX = 7, 2
DESCRIPTORS = 16
EVENTFD, UNMAP_ALL = 1 << 2, 1 << 2


class Server:
    def __init__(self, path, device, vectors):
        self.device, self.vectors = device, vectors
        self.door = socket.socket(socket.AF_UNIX)
        self.door.bind(path)
        self.door.listen()
        self.door.setblocking(False)
        self.client = None
        self.refused = []

    def receive(self):
        """The next message, if it is there: id, command, flags, body, descriptors; b"" at the end of the stream."""
        try:
            if self.client is None:
                self.client, _ = self.door.accept()
            # not recv_fds, which drops its flags
            space = socket.CMSG_SPACE(4 * DESCRIPTORS)
            head, ancillary, _, _ = self.client.recvmsg(HEADER.size, space, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        descriptors = [fd for _, _, data in ancillary for (fd,) in struct.iter_unpack("=i", data)]
        if not head:
            return b""
        # the client sends what is left without a pause
        self.client.setblocking(True)
        if len(head) < HEADER.size:
            head += self.client.recv(HEADER.size - len(head), socket.MSG_WAITALL)
        number, command, size, flags, _ = HEADER.unpack(head)
        left = size - HEADER.size
        body = self.client.recv(left, socket.MSG_WAITALL) if left else b""
        return number, command, flags, body, descriptors

    async def serve(self):
        """Obeys what has come; False: the client has gone."""
        while (message := self.receive()) is not None:
            if not message:
                self.client.close()
                return False
            number, command, flags, body, descriptors = message
            try:
                flag, code, answer = REPLY, 0, await self.obey(command, body, descriptors)
            except OSError as error:
                self.refused.append((command, str(error)))
                flag, code, answer = REPLY | ERROR, error.errno, b""
            if not flags & NO_REPLY:
                self.client.sendall(HEADER.pack(number, command, HEADER.size + len(answer), flag, code) + answer)
        return True

    async def obey(self, command, body, descriptors):
        device = self.device
        if command == VERSION:
            return struct.pack("=HH", 0, 1) + b'{"capabilities":{"max_msg_fds":1,"max_data_xfer_size":1048576}}\0'
        if command == DEVICE_INFO:
            return struct.pack("=IIII", 16, 3, CONFIG + 1, MSIX + 1)
        if command == IRQ_INFO:
            kind = struct.unpack_from("=IIII", body)[2]
            return struct.pack("=IIII", 16, 1, kind, self.vectors if kind == MSIX else 0)
        if command == MAP:
            _, _, offset, iova, length = struct.unpack("=IIQQQ", body)
            device.map(iova, length, descriptors[0], offset)
            return b""
        if command == UNMAP:
            _, flags, iova, length = struct.unpack("=IIQQ", body)
            device.unmap(*((0, 1 << 64) if flags & UNMAP_ALL else (iova, length)))
            return body
        if command == SET_IRQS:
            _, flags, kind, first, count = struct.unpack("=IIIII", body)
            if kind != MSIX or first + count > self.vectors:
                raise OSError(errno.EINVAL, "no such interrupt")
            await device.connect(first, descriptors if flags & EVENTFD else None)
            return b""
        if command in (READ, WRITE):
            offset, region, count = struct.unpack_from("=QII", body)
            if offset + count > device.region_bytes(region):
                raise OSError(errno.EINVAL, "the access leaves its region")
            if command == READ:
                return body[:16] + await device.read(region, offset, count)
            await device.write(region, offset, body[16:])
            return body[:16]
        if command == RESET:
            await device.reset()
            return b""
        raise OSError(errno.ENOTSUP, f"command {command}")
