#!/usr/bin/env python3
"""Tests of the tools in this folder, run as a user runs them. `testdata/` holds packets from outside."""

import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest

import capture

HERE = os.path.dirname(os.path.abspath(__file__))
DATA = os.path.join(HERE, "testdata")
NAMES = sorted(name for name in os.listdir(DATA) if name.endswith(".pcap"))

# Captured from a ConnectX-4 Lx; its ICRC is 82fd002a.
CNP = bytes.fromhex(
    "e41d2dab2bc27cfe90643b32080045c2003c718c4000401191610a0011010a001201000012b7002800008100ffff40000118"
    "000000000000000000000000000000000000000082fd002a"
)
# Captured from a UC sender: SEND_ONLY with two pad bytes.
UC_SEND = bytes.fromhex(
    "248a07a8fa22248a07a8fa22080045010040047840004011b4d5c0a80007c0a80007c00012b7002caca22460ffff000000d3"
    "00cf17104630818be28935d90e9a95505401be885e50000078f353f3"
)


def tool(name, *arguments):
    command = [sys.executable, "-B", os.path.join(HERE, name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def data(name):
    return os.path.join(DATA, name)


def content_of(path):
    with open(path, "rb") as file:
        return file.read()


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def path(self, name):
        return os.path.join(self.folder, name)

    def capture(self, frames, interfaces=("wire",)):
        path = self.path("test.pcapng")
        capture.write(path, interfaces, frames)
        return path


def frame(content, time_ns=0, interface=0, comments=(), outbound=None):
    return capture.Frame(0, interface, "", time_ns * 1000, bytes(content), 0, list(comments), outbound)


class Capture(Files):
    def test_what_is_written_is_read_back(self):
        path = self.capture(
            [
                frame(CNP, 5, 0, ["first"], True),
                frame(UC_SEND, 2**33, 1, ["wire: corrupted", "ü"], False),
                frame(CNP[:61], 2**40, 1),
            ],
            ("a", "b"),
        )
        back = list(capture.read(path))
        self.assertEqual([f.data for f in back], [CNP, UC_SEND, CNP[:61]])
        self.assertEqual([f.time_ps for f in back], [5000, 2**33 * 1000, 2**40 * 1000])
        self.assertEqual([f.interface_name for f in back], ["a", "b", "b"])
        self.assertEqual([f.comments for f in back], [["first"], ["wire: corrupted", "ü"], []])
        self.assertEqual([f.outbound for f in back], [True, False, None])
        self.assertEqual([f.marked_corrupted for f in back], [False, True, False])

    def test_a_damaged_file_is_refused_not_guessed(self):
        whole = content_of(self.capture([frame(CNP), frame(CNP)]))
        for cut in (10, len(whole) // 2, len(whole) - 1):
            with open(self.path("cut"), "wb") as file:
                file.write(whole[:cut])
            self.assertEqual(tool("icrc", self.path("cut")).returncode, 2, cut)
        self.assertEqual(tool("icrc", self.path("absent")).returncode, 2)
        self.assertEqual(tool("icrc").returncode, 2)

    def test_stamps_follow_the_resolution_that_the_interface_names(self):
        path = self.capture([frame(CNP, 7)])
        whole = bytearray(content_of(path))
        at = whole.index(b"\x09\x00\x01\x00\x09") + 4
        for value, expected in ((6, 7_000_000), (9, 7_000), (12, 7), (0x80 | 10, 7 * 10**12 // 1024)):
            whole[at] = value
            with open(path, "wb") as file:
                file.write(whole)
            self.assertEqual([f.time_ps for f in capture.read(path)], [expected])


class Icrc(Files):
    def test_every_packet_from_outside_is_good(self):
        done = tool("icrc", *map(data, NAMES))
        self.assertEqual(done.returncode, 0, done.stdout)
        total = sum(1 for name in NAMES for _ in capture.read(data(name)))
        self.assertIn(f"{len(NAMES)} captures: {total} good, 0 bad", done.stdout)

    def test_frames_captured_from_hardware_are_good_also_behind_vlan_tags(self):
        tag, double = bytes.fromhex("8100600a"), bytes.fromhex("88a80001" "8100600a")
        frames = [CNP, UC_SEND, CNP[:12] + tag + CNP[12:], UC_SEND[:12] + double + UC_SEND[12:]]
        done = tool("icrc", self.capture([frame(content) for content in frames]))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn(" 4 good, 0 bad", done.stdout)

    def test_a_flipped_bit_is_bad_exactly_where_the_icrc_covers_it(self):
        ipv6 = next(iter(capture.read(data("rc_pingpong_send_ipv6.pcap")))).data
        masked = {
            4: {14 + 1, 14 + 8, 14 + 10, 14 + 11, 34 + 6, 34 + 7, 42 + 4},
            6: {14 + 1, 14 + 2, 14 + 3, 14 + 7, 54 + 6, 54 + 7, 62 + 4},
        }
        for version, content in ((4, UC_SEND), (6, ipv6)):
            # Type, version, lengths, protocol, fragment and port make it another packet: judged elsewhere.
            skip = {12, 13, 14} | ({16, 17, 20, 21, 23, 36, 37, 38, 39} if version == 4 else {18, 19, 20, 56, 57, 58, 59})
            frames, covered = [], 0
            for at in range(len(content)):
                if at not in skip:
                    frames.append(frame(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]))
                    covered += at > 14 and at not in masked[version]
            done = tool("icrc", self.capture(frames))
            self.assertEqual(done.returncode, 1)
            self.assertIn(f" {len(frames) - covered} good, {covered} bad", done.stdout)

    def test_a_planted_bad_frame_is_named_and_one_marked_corrupted_is_exempt(self):
        bad = CNP[:-1] + b"\x2b"
        done = tool("icrc", self.capture([frame(CNP), frame(bad), frame(bad, comments=["wire: Corrupted bit 9"])]))
        self.assertEqual(done.returncode, 1)
        self.assertIn("frame 2: carries ICRC 82fd002b, should be 82fd002a", done.stdout)
        self.assertIn("1 good, 1 bad, 1 marked corrupted, 0 not RoCEv2", done.stdout)

    def test_frames_of_an_address_that_is_told_apart_are_counted_and_not_judged(self):
        bad = CNP[:-1] + b"\x2b"
        strange = bad[:6] + bytes.fromhex("020000000077") + bad[12:]
        path = self.capture([frame(CNP), frame(strange), frame(strange[:30])])
        self.assertEqual(tool("icrc", path).returncode, 1)
        done = tool("icrc", "--without", "02:00:00:00:00:77", path)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("1 good, 0 bad, 0 marked corrupted, 0 not RoCEv2, 2 from 02:00:00:00:00:77", done.stdout)
        path = self.capture([frame(bad), frame(strange)])
        self.assertEqual(tool("icrc", "--without", "02:00:00:00:00:77", path).returncode, 1)

    def test_lengths_that_contradict_each_other_are_bad_and_padding_is_not(self):
        longer = CNP[:16] + (61).to_bytes(2, "big") + CNP[18:]
        other = CNP[:36] + (4790).to_bytes(2, "big") + CNP[38:]
        done = tool("icrc", self.capture([frame(longer), frame(longer + b"\0"), frame(CNP + b"\0" * 9), frame(other)]))
        self.assertIn("1 good, 2 bad, 0 marked corrupted, 1 not RoCEv2", done.stdout)


class WireFigures(Files):
    def rows(self, *arguments):
        done = tool("wire_figures", "--json", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_a_request_sent_again_counts_its_payload_once(self):
        (row,) = self.rows(data("v_retry_exceeded.pcap"))
        self.assertEqual((row["sender"], row["payload_bytes"], row["packets"]), ("10.0.0.2", 100, 4))
        self.assertEqual((row["retransmissions"], row["time_ps"]), (3, 857_943_000_000))

    def test_the_bound_is_that_of_the_packets_at_the_link_rate(self):
        (row,) = self.rows(data("v_retry_exceeded.pcap"))
        # 100 bytes in one WRITE_ONLY: 82 + 16 (RETH) beside them
        self.assertAlmostEqual(row["bound_gbps"], 10 * 100 / 198)
        self.assertEqual(row["wire_bytes"], 4 * 198)
        (fast,) = self.rows("--rate-gbps", "100", data("v_retry_exceeded.pcap"))
        self.assertAlmostEqual(fast["bound_gbps"], 10 * row["bound_gbps"])

    def made(self, psns, gap_ns, wrap=0):
        """A SEND_MIDDLE of 1024 bytes per PSN, seen at both ends of a wire that takes 500 ns."""
        template = next(f.data for f in capture.read(data("v_rnr_exceeded.pcap")) if f.data[42] == 1)
        frames = []
        for index, psn in enumerate(psns):
            content = bytearray(template)
            content[51:54] = ((psn + wrap) % 2**24).to_bytes(3, "big")
            frames.append(frame(content, index * gap_ns, 0))
            if index != 1:  # lost on the wire
                frames.append(frame(content, index * gap_ns + 500, 1))
        frames.sort(key=lambda one: one.time_ps)
        return self.capture(frames, ("card0", "card1"))

    def test_both_ends_in_one_file_are_not_counted_twice_and_a_loss_is_one_rewind(self):
        for wrap in (0, 2**24 - 2):
            (row,) = self.rows(self.made([0, 1, 2, 1, 2, 3], 1000, wrap))
            self.assertEqual((row["payload_bytes"], row["packets"], row["retransmissions"]), (4096, 6, 2))
            self.assertEqual(row["time_ps"], 5_000_000)

    def test_back_to_back_packets_reach_the_bound(self):
        # 1024 bytes in 1106 on the link: 884.8 ns at 10 Gb/s
        (row,) = self.rows(self.made(range(1000), 885))
        self.assertAlmostEqual(row["bound_gbps"], 10 * 1024 / 1106)
        self.assertAlmostEqual(row["share"], 884.8 / 885 * 1000 / 999, places=9)

    def test_read_responses_are_the_payload_of_their_sender_and_every_ext_header_is_known(self):
        rows = self.rows(*map(data, NAMES))
        sums = {(os.path.basename(row["file"]), row["sender"][-2:]): row["payload_bytes"] for row in rows}
        self.assertEqual(sums["rc_pingpong_send_ipv6.pcap", "0a"], 7500)
        self.assertEqual(sums["v_rnr_exceeded.pcap", ".2"], 2500)
        self.assertNotIn(("v_bad_rkey_read.pcap", ".2"), sums)


class DmaFigures(Files):
    def run_log(self, rows, *arguments, header="time_ps,dir,kind,addr,len,tag,status"):
        with open(self.path("tlp.csv"), "w", newline="", encoding="utf-8") as file:
            file.write(header + "\n")
            csv.writer(file).writerows(rows)
        return tool("dma_figures", "--json", *arguments, self.path("tlp.csv"))

    GOOD = [
        (0, "up", "MRd", "0x1000", 256, 1, ""),
        (4000, "up", "MRd", "0x2000", 64, 2, ""),
        (900_000, "down", "CplD", "", 64, 2, "SC"),
        (904_000, "down", "CplD", "", 128, 1, "SC"),
        (908_000, "down", "CplD", "", 128, 1, "SC"),
        (1_000_000, "up", "MWr", "0x3000", 256, "", ""),
    ]

    def test_counts_sizes_latency_and_efficiency(self):
        done = self.run_log(self.GOOD, "--raw-gbps", "10")
        self.assertEqual(done.returncode, 0, done.stderr)
        result = json.loads(done.stdout)
        kinds = {(row["dir"], row["kind"]): (row["tlps"], row["bytes"], row["mean"]) for row in result["kinds"]}
        self.assertEqual(kinds["up", "MRd"], (2, 320, 160))
        self.assertEqual(kinds["down", "CplD"], (3, 320, 320 / 3))
        reads = result["reads"]
        self.assertEqual((reads["done"], reads["open"], reads["most_open"]), (2, 0, 2))
        self.assertEqual((reads["last_byte_ps"]["p0"], reads["last_byte_ps"]["p100"]), (896_000, 908_000))
        self.assertEqual(reads["first_byte_ps"]["p100"], 904_000)
        # up: 256 bytes in 256 + 3 x 24; down: 320 in 320 + 3 x 20
        self.assertAlmostEqual(result["links"]["up"]["efficiency"], 256 / 328)
        self.assertAlmostEqual(result["links"]["down"]["efficiency"], 320 / 380)
        self.assertAlmostEqual(result["links"]["down"]["raw_use"], 380 * 8 / 1000 / 10)

    def test_a_log_that_contradicts_itself_is_refused(self):
        stray = [*self.GOOD, (2_000_000, "down", "CplD", "", 64, 9, "SC")]
        twice = [*self.GOOD[:1], (1000, "up", "MRd", "0", 4, 1, ""), *self.GOOD[2:3]]
        more = [*self.GOOD[1:2], (900_000, "down", "CplD", "", 128, 2, "SC")]
        back = [self.GOOD[-1], (5, "up", "MWr", "0", 4, "", "")]
        for rows, word in ((stray, "nobody"), (twice, "in use"), (more, "more than"), (back, "backwards")):
            done = self.run_log(rows)
            self.assertEqual(done.returncode, 1, word)
            self.assertIn(word, done.stderr)

    def test_an_error_completion_ends_its_read_and_an_open_one_is_told(self):
        rows = [self.GOOD[0], self.GOOD[1], (9000, "down", "Cpl", "", 0, 1, "UR")]
        reads = json.loads(self.run_log(rows).stdout)["reads"]
        self.assertEqual((reads["done"], reads["failed"], reads["open"]), (0, 1, 1))

    def test_a_log_without_its_columns_or_numbers_is_refused_by_line(self):
        done = self.run_log([], header="time_ps,dir")
        self.assertEqual(done.returncode, 2)
        self.assertIn("kind, addr, len, tag, status", done.stderr)
        done = self.run_log([(0, "up", "MWr", "0", "many", "", "")])
        self.assertEqual(done.returncode, 2)
        self.assertIn("tlp.csv:2", done.stderr)


if __name__ == "__main__":
    unittest.main()
