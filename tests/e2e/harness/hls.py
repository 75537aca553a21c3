"""An HLS stream that every Chromium can play, made without tools: tones in FLAC, in fragmented MP4.

The FLAC frames hold plain samples ("verbatim" subframes), so that a segment's size is known."""

import math
import struct

RATE = 48_000
# Samples of a FLAC frame: a tenth of a second.
BLOCK = 4_800
FRAMES_S = RATE // BLOCK


def crc_table(width, polynomial):
    table, top = [], 1 << (width - 1)
    for value in range(256):
        value <<= width - 8
        for _ in range(8):
            value = ((value & ~top) << 1) ^ (polynomial if value & top else 0)
        table.append(value)
    return table


CRC8, CRC16 = crc_table(8, 0x07), crc_table(16, 0x8005)


def crc8(data):
    crc = 0
    for byte in data:
        crc = CRC8[crc ^ byte]
    return crc


def crc16(data):
    crc, table = 0, CRC16
    for byte in data:
        crc = (crc << 8 & 0xFFFF) ^ table[crc >> 8 ^ byte]
    return crc


def coded(number):
    """The number of a frame, coded as UTF-8 does."""
    return chr(number).encode()


def frame(number, samples):
    """A FLAC frame: one channel, 16 bits, `BLOCK` big-endian samples."""
    # The codes of "block size in 16 bits" and 48 kHz; one channel, 16 bits.
    header = struct.pack(">HBB", 0xFFF8, 0x7A, 0x08) + coded(number) + struct.pack(">H", BLOCK - 1)
    data = header + bytes([crc8(header)]) + b"\x02" + samples
    return data + struct.pack(">H", crc16(data))


def tone(hertz):
    """The samples of a frame. `hertz` is a multiple of ten, so that frames join without a click."""
    cycle = [int(6000 * math.sin(2 * math.pi * n * hertz / RATE)) for n in range(RATE // 10)]
    return struct.pack(f">{BLOCK}h", *cycle)


def box(kind, *parts):
    data = b"".join(parts)
    return struct.pack(">I4s", 8 + len(data), kind) + data


def full(kind, flags, *parts, version=0):
    """A box with a version and flags."""
    return box(kind, struct.pack(">I", version << 24 | flags), *parts)


def init():
    """The initialization segment: one track of FLAC without samples."""
    matrix = struct.pack(">9I", 0x10000, 0, 0, 0, 0x10000, 0, 0, 0, 0x40000000)
    info = struct.pack(">HH6xQ16x", BLOCK, BLOCK, RATE << 44 | 15 << 36)
    entry = box(b"fLaC", struct.pack(">6xH8xHH4xI", 1, 1, 16, RATE << 16),
                full(b"dfLa", 0, struct.pack(">I", 0x80 << 24 | len(info)), info))
    tables = [full(kind, 0, bytes(4)) for kind in (b"stts", b"stsc", b"stco")]
    media = box(b"minf", full(b"smhd", 0, bytes(4)),
                box(b"dinf", full(b"dref", 0, struct.pack(">I", 1), full(b"url ", 1))),
                box(b"stbl", full(b"stsd", 0, struct.pack(">I", 1), entry), *tables, full(b"stsz", 0, bytes(8))))
    track = box(b"trak",
                full(b"tkhd", 3, struct.pack(">8xI20xH2x", 1, 0x0100), matrix, bytes(8)),
                box(b"mdia", full(b"mdhd", 0, struct.pack(">8xI4xHH", RATE, 0x55C4, 0)),
                    full(b"hdlr", 0, struct.pack(">4x4s12x", b"soun"), b"tones\0"), media))
    return box(b"ftyp", b"iso6", bytes(4), b"iso6mp41") + box(
        b"moov", full(b"mvhd", 0, struct.pack(">8xI4xIH10x", RATE, 0x10000, 0x0100), matrix, bytes(24), struct.pack(">I", 2)),
        track, box(b"mvex", full(b"trex", 0, struct.pack(">5I", 1, 1, BLOCK, 0, 0))))


def segment(number, seconds):
    """A media segment: it begins at `number * seconds`, and has a tone of its own."""
    samples, first = tone(220 + 20 * number), number * seconds * FRAMES_S
    frames = [frame(first + n, samples) for n in range(seconds * FRAMES_S)]
    sizes = struct.pack(f">{len(frames)}I", *map(len, frames))

    def moof(offset):
        return box(b"moof", full(b"mfhd", 0, struct.pack(">I", number + 1)), box(
            b"traf", full(b"tfhd", 0x20000, struct.pack(">I", 1)),
            full(b"tfdt", 0, struct.pack(">Q", first * BLOCK), version=1),
            full(b"trun", 0x201, struct.pack(">Ii", len(frames), offset), sizes)))

    return moof(len(moof(0)) + 8) + box(b"mdat", *frames)


def stream(count, seconds):
    """A stream of `count` segments: the bytes of its files by their names."""
    names = [f"{number:03}.m4s" for number in range(count)]
    lines = ["#EXTM3U", "#EXT-X-VERSION:7", f"#EXT-X-TARGETDURATION:{seconds}", "#EXT-X-PLAYLIST-TYPE:VOD",
             '#EXT-X-MAP:URI="init.mp4"', *(f"#EXTINF:{seconds},\n{name}" for name in names), "#EXT-X-ENDLIST", ""]
    files = {"index.m3u8": "\n".join(lines).encode(), "init.mp4": init()}
    return files | {name: segment(number, seconds) for number, name in enumerate(names)}
